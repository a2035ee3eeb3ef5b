"""Runs an ASGI application for requests over HTTP/3, one task for each request, and serves the
native protocol in WebTransport sessions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from email.utils import formatdate
from typing import Any, Final, TypeAlias

from outrider.client.protocol import CloseCode
from outrider.errors import DrainingError, OutriderError
from services.edge.http3.application import Application, ApplicationCall
from services.edge.http3.exchange import H3Code
from services.edge.http3.framing import ConnectionFault
from services.edge.http3.limits import Http3Limits
from services.edge.http3.messages import Refusal, Request
from services.edge.http3.session import Http3Session, RequestStream
from services.edge.http3.webtransport import DRAIN, Close, http_code
from services.edge.quic.aioquic_shim import BoundedConnection, ProtocolLimits
from services.edge.quic.alpn import Connection
from services.edge.quic.native_streams import NativeStreams

ALPN: Final = "h3"
_STREAM_WINDOW_BYTES: Final = 256 << 10
_UNIDIRECTIONAL_WINDOW_BYTES: Final = 64 << 10
_MAX_UNIDIRECTIONAL: Final = 8
"""Unidirectional streams: control, QPACK's encoder and decoder, and some of unknown types, which
are ignored (RFC 9114, section 6.2)."""
_STARTS_PER_TURN: Final = 4
"""Applications begun in one turn of the event loop: a datagram may hold fifty requests."""
_EXCESSIVE_LOAD: Final[int] = H3Code.EXCESSIVE_LOAD.value
_NO_ERROR: Final[int] = H3Code.NO_ERROR.value
_CHECKS_PER_TIMEOUT: Final = 10
_END_S: Final = 1.0
"""How long, when the edge stops, applications may take to end and responses to arrive."""
_MAX_CHECK_S: Final = 1.0
_POLL_S: Final = 0.01

Word: TypeAlias = Callable[[Refusal, Request], Refusal]
"""How refusals of a request are worded."""
MaySession: TypeAlias = Callable[[Request, Connection], Refusal | None]
"""Why a request on a connection opens no WebTransport session; None: it may."""


def _plainly(refusal: Refusal, request: Request) -> Refusal:
    return refusal


def _no_sessions(request: Request, connection: Connection) -> Refusal | None:
    return Refusal(404, "this edge opens no sessions")


class _SessionTransport:
    """The QUIC connection, as a session's streams see it: their error codes are an application's
    (draft-ietf-webtrans-http3-16, section 4.4)."""

    def __init__(self, quic: BoundedConnection) -> None:
        self._quic = quic
        self.send_stream_data = quic.send_stream_data
        self.num_unacknowledged_bytes = quic.num_unacknowledged_bytes

    def reset_stream(self, stream_id: int, error_code: int) -> None:
        """See `Transport.reset_stream`."""
        self._quic.reset_stream(stream_id, http_code(error_code))

    def stop_stream(self, stream_id: int, error_code: int) -> None:
        """See `Transport.stop_stream`."""
        self._quic.stop_reading(stream_id, http_code(error_code))


class Http3Service:
    """HTTP/3 on the connections of one listener."""

    alpn = ALPN
    limits = ProtocolLimits(
        stream_window_bytes=_STREAM_WINDOW_BYTES,
        max_unidirectional_streams=_MAX_UNIDIRECTIONAL,
        unidirectional_window_bytes=_UNIDIRECTIONAL_WINDOW_BYTES,
    )

    def __init__(
        self,
        application: Application,
        limits: Http3Limits,
        *,
        state: Mapping[str, Any] | None = None,
        word: Word = _plainly,
        may_session: MaySession = _no_sessions,
    ) -> None:
        """`word` chooses the wording of refusals made without the application; `may_session`
        decides on WebTransport sessions. `state`: state left
        by the application's lifespan for its requests. The listener over TCP runs the lifespan,
        which exists only once."""
        self.application = application
        self.word = word
        self.may_session = may_session
        self.http_limits = limits
        self.state: Mapping[str, Any] = state if state is not None else {}
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._connections: set[Http3Connection] = set()
        self._progressed = asyncio.Event()
        """A client acknowledged something, or is gone."""
        self._date = -1, b""

    @property
    def num_requests(self) -> int:
        """Under way."""
        return len(self._tasks) + len(self._waiting)

    def open(self, connection: Connection) -> Http3Connection:
        """Serve a connection."""
        opened = Http3Connection(self, connection)
        self._connections.add(opened)
        return opened

    def progressed(self, connection: Http3Connection, *, has_ended: bool) -> None:
        """The client acknowledged something, or is gone."""
        if has_ended:
            self._connections.discard(connection)
        self._progressed.set()

    def close_code(self, code: CloseCode) -> int:
        """Error code for closing a connection; see ApplicationService."""
        is_overload = code is CloseCode.OVERLOADED
        return _EXCESSIVE_LOAD if is_overload else _NO_ERROR

    def date(self) -> bytes:
        """The time, as HTTP writes it."""
        now = int(time.time())
        if self._date[0] != now:
            self._date = now, formatdate(now, usegmt=True).encode()
        return self._date[1]

    def start(self, begin: Callable[[], None]) -> None:
        """Call `begin`, which makes a task, when it is its turn."""
        self._is_idle.clear()
        self._waiting.append(begin)
        self._schedule()

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task for a request."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def idle(self) -> None:
        """Return when no application is at work, and no client waits for the ids of a text."""
        await self._is_idle.wait()
        while any(it.has_questions for it in self._connections):  # noqa: ASYNC110 (only at the end)
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Give applications that were told to end, and responses on their way, a moment; then
        cancel the rest."""
        error = DrainingError("this edge is shutting down; send the chat to another")
        for connection in list(self._connections):
            connection.fail_chats(error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                while not all(it.is_delivered for it in self._connections):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
        for connection in list(self._connections):
            connection.close_session(Close(CloseCode.SHUTTING_DOWN, "this edge is shutting down"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self.idle()
                while not all(connection.is_idle for connection in self._connections):
                    self._progressed.clear()
                    await self._progressed.wait()
        self._waiting.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        for _ in range(min(_STARTS_PER_TURN, len(self._waiting))):
            self._waiting.popleft()()
        if self._waiting:
            self._schedule()
        self._look_idle()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._look_idle()

    def _look_idle(self) -> None:
        if not self.num_requests:
            self._is_idle.set()


class Http3Connection:
    """Serves the streams of one connection."""

    def __init__(self, service: Http3Service, connection: Connection) -> None:
        self._service = service
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._limits = service.http_limits
        self._native: NativeStreams | None = None
        """Streams of the open WebTransport session; None: there is none."""
        self._calls: dict[RequestStream, ApplicationCall] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False
        self._is_at_fault = False
        """The client broke the protocol: the connection is being closed."""
        self._session = Http3Session(
            connection.quic, connection.budget, self._limits, self, self._loop.time()
        )
        connection.transmit_soon()

    # For the connection.

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way, and no chat of a session."""
        is_used = self._native is not None and self._native.was_used()
        return not (is_used or self._session.num_requests)

    @property
    def has_questions(self) -> bool:
        """Whether its client waits for the ids of a text."""
        return self._native is not None and self._native.has_questions

    def received(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        """Data arrived on a stream; see StreamService."""
        if self._native is not None and stream_id in self._native:
            self._native.received(stream_id, data, end_stream)
            return
        self._guarded(lambda now: self._session.received(stream_id, data, end_stream, now))

    def reset(self, stream_id: int) -> None:
        """The client reset a stream; see StreamService."""
        if self._native is not None and stream_id in self._native:
            self._native.reset(stream_id)
            return
        self._guarded(lambda now: self._session.reset(stream_id, now))

    def stopped(self, stream_id: int) -> None:
        """The client stopped reading a stream; see StreamService."""
        if self._native is not None and stream_id in self._native:
            self._native.stopped(stream_id)
            return
        self._guarded(lambda now: self._session.stopped(stream_id, now))

    def acknowledged(self) -> None:
        """The client acknowledged data; see StreamService."""
        if not self._has_ended:
            self._session.acknowledged(self._loop.time())
            if self._native is not None:
                self._native.acknowledged()
            self._service.progressed(self, has_ended=False)

    def drain(self) -> None:
        """Take no new requests; see StreamService."""
        if not self._has_ended:
            self._session.drain()
            self._session.send_capsule(DRAIN, self._loop.time())
            self._connection.transmit_soon()

    def fail_chats(self, error: OutriderError) -> None:
        """End the chats of the open session with an error, and send it."""
        if self._native is not None:
            self._native.fail_chats(error)
            self._connection.transmit_soon()

    @property
    def is_delivered(self) -> bool:
        """Whether nothing that was written waits for its client."""
        return self._has_ended or self._connection.quic.is_delivered

    def close_session(self, close: Close) -> None:
        """End the open session, if there is one; its streams end with it."""
        if self._native is not None:
            self._end_streams(gave_up=False)
            self._session.close_session(close, self._loop.time())
            self._watch()
            self._connection.transmit_soon()

    def lost(self) -> None:
        """The connection was lost; see StreamService. Applications are told, and have a little time
        to end."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        for call in self._calls.values():
            call.client_lost()
            self._loop.call_later(self._limits.cancel_grace_s, call.cancel)
        self._session.lost()
        if self._native is not None:
            self._native.lost(gave_up=False)
            self._native = None
        self._service.progressed(self, has_ended=True)

    # For the session.

    def hold_stream(self) -> bool:
        """Count a stream; see RequestHost."""
        self._watch()
        return self._connection.hold_stream()

    def release_stream(self) -> None:
        """Release a stream; see RequestHost."""
        self._connection.release_stream()

    def may_begin(self) -> bool:
        """Whether one more request fits; see RequestHost."""
        return self._service.num_requests < self._limits.max_requests

    def date(self) -> bytes:
        """Value of the Date header; see RequestHost."""
        return self._service.date()

    def worded(self, refusal: Refusal, request: Request) -> Refusal:
        """The wording of a refusal; see RequestHost."""
        return self._service.word(refusal, request)

    def begin(self, stream: RequestStream) -> None:
        """Run the application for a request; see RequestHost."""
        self._service.start(lambda: self._start(stream))

    def session_refusal(self, request: Request) -> Refusal | None:
        """Why a request opens no session; see RequestHost."""
        return self._service.may_session(request, self._connection)

    def session_opened(self, session_id: int) -> None:
        """Serve the streams of a session; see RequestHost."""
        transport = _SessionTransport(self._connection.quic)
        self._native = NativeStreams(self._connection, transport)

    def session_received(self, stream_id: int, data: bytes, has_ended: bool) -> None:
        """A new stream of the session; see RequestHost."""
        assert self._native is not None
        self._native.received(stream_id, data, has_ended)

    def session_closed(self, session_id: int, close: Close | None) -> None:
        """The session's chats end with it, unless its client may come back; see RequestHost."""
        self._end_streams(gave_up=close is not None and close.code != CloseCode.COMING_BACK)

    def _end_streams(self, *, gave_up: bool) -> None:
        native, self._native = self._native, None
        assert native is not None
        for stream_id, has_ended in native.lost(gave_up=gave_up).items():
            self._session.discard(stream_id, self._loop.time(), has_ended=has_ended)

    # Requests.

    def _start(self, stream: RequestStream) -> None:
        if stream.gone_since is not None or self._has_ended:  # reset before its turn came
            self._session.returned(stream, self._loop.time())
            return
        call = ApplicationCall(self._service.application, self._session, stream, self._connection)
        self._calls[stream] = call
        call.task = self._service.run(call.run(self._service.state))
        call.task.add_done_callback(lambda _: self._ended(stream))

    def _ended(self, stream: RequestStream) -> None:
        self._calls.pop(stream).close()
        self._session.returned(stream, self._loop.time())
        if not self._has_ended:
            self._connection.transmit_soon()

    def _guarded(self, feed: Callable[[float], None]) -> None:
        if self._has_ended or self._is_at_fault:
            return
        try:
            feed(self._loop.time())
        except ConnectionFault as fault:
            self._is_at_fault = True
            self._connection.context.telemetry.refused("http3", error=fault.reason)
            self._connection.close(fault.code, fault.reason)
        self._connection.transmit_soon()

    def _watch(self) -> None:
        if self._timer is None and not self._has_ended:
            limits = self._limits
            shortest = min(
                limits.header_timeout_s,
                limits.body_timeout_s,
                limits.write_timeout_s,
                limits.cancel_grace_s,
                limits.close_timeout_s,
            )
            wait_s = min(_MAX_CHECK_S, shortest / _CHECKS_PER_TIMEOUT)
            self._timer = self._loop.call_later(wait_s, self._check)

    def _check(self) -> None:
        self._timer = None
        for stream in self._session.expire(self._loop.time()):
            if (call := self._calls.get(stream)) is not None:
                call.cancel()
        if self._session.num_timed:
            self._watch()
        self._connection.transmit_soon()
