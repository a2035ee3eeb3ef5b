"""HTTP/3 on one connection: which streams carry requests, their progress, and their limits; and
whether a WebTransport session is open, whose streams are the host's.

Data and the application's messages come in with the time `now`; frames go out through `Framing`,
and everything for the caller to do goes to its `RequestHost`. No I/O and no clock, like aioquic's
connections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from outrider.errors import MalformedFrameError
from services.edge.http3.exchange import (
    Action,
    Exchange,
    H3Code,
    SendData,
    SendHeaders,
    answer,
)
from services.edge.http3.framing import (
    Body,
    ConnectionFault,
    Fields,
    FrameEvent,
    Framing,
    Malformed,
    SessionData,
    TooManyFields,
)
from services.edge.http3.limits import Http3Limits
from services.edge.http3.messages import (
    Headers,
    Message,
    Refusal,
    Request,
    check_trailers,
    read_request,
)
from services.edge.http3.webtransport import PROTOCOLS, SETTINGS, CapsuleReader, Close
from services.edge.limits.listener import MemoryBudget
from services.edge.limits.quotas import RateLimit, TokenBucket
from services.edge.quic.aioquic_shim import BoundedConnection

_READ_BYTES: Final = 4096
"""Read of a stream at once, before it is looked at whether that was too much."""
_OVERHEAD_BYTES: Final = 16 << 10
"""Most bytes of a request besides headers and body: ignored frames, and frame headers. An eighth of
the body may come on top."""
_CONTROL: Final = RateLimit(per_s=4096.0, burst=65_536.0)
"""Bytes of unidirectional streams: SETTINGS, priorities, QPACK, and ignored data."""
_REQUEST_BYTES: Final = 2048
"""Memory of a request besides its body."""
_LATE: Final = Refusal(408, "")
_LATE_BODY: Final = Refusal(408, "the body of the request did not come in time; send it again")
_TOO_LARGE: Final = Refusal(431, "")
_FULL: Final = Refusal(503, "this edge has all the requests it takes; try again", retry_after_s=1)
_NO_TUNNEL: Final = Refusal(501, "this edge opens no tunnels of that protocol")


class RequestHost(Protocol):
    """The side that runs the application."""

    def hold_stream(self) -> bool:
        """Count a stream of the client's address prefix; False if it has too many."""
        ...

    def release_stream(self) -> None:
        """Release the stream's count."""
        ...

    def may_begin(self) -> bool:
        """Whether one more request fits, over all connections."""
        ...

    def date(self) -> bytes:
        """The time, for responses (RFC 9110, section 6.6.1)."""
        ...

    def worded(self, refusal: Refusal, request: Request) -> Refusal:
        """A refusal of this request, as the application words its own."""
        ...

    def begin(self, stream: RequestStream) -> None:
        """Run the application for this request."""
        ...

    def session_refusal(self, request: Request) -> Refusal | None:
        """Why this request opens no WebTransport session; None: it may."""
        ...

    def session_opened(self, session_id: int) -> None:
        """A WebTransport session is open, the only one of the connection."""
        ...

    def session_closed(self, session_id: int, close: Close | None) -> None:
        """The client closed the session; None: it is gone without a word."""
        ...

    def session_received(self, stream_id: int, data: bytes, has_ended: bool) -> None:
        """Bytes of a new stream of the open session. Further ones of this stream are for the host
        alone."""
        ...


class Tunnel:
    """The stream of a WebTransport session, on which its end is told."""

    def __init__(self) -> None:
        self.capsules = CapsuleReader()
        self.closed_since: float | None = None
        """When this side closed the session; its client's end is still to come."""


class RequestStream:
    """A request stream. `exchange` is there once its headers have come, or a `tunnel`."""

    def __init__(self, stream_id: int, now: float) -> None:
        self.stream_id = stream_id
        self.opened_at = now
        self.exchange: Exchange | None = None
        self.tunnel: Tunnel | None = None
        self.is_running = False
        """The application works on it."""
        self.wake: Callable[[], None] = _nobody
        """Called when the application may have something to receive, or room to send."""
        self.num_unsent_bytes = 0
        """Bytes of the response that are not acknowledged."""
        self.blocked_since: float | None = None
        """When too much was unsent, or the response had ended unacknowledged."""
        self.gone_since: float | None = None
        """When its client was gone while the application was working."""
        self.is_reading = True
        """Whether incoming data is read rather than ignored."""
        self.client_ended = False
        """Whether the client has ended its side."""
        self.is_counted = False
        self.num_held_bytes = 0
        """Taken from the budget."""
        self.num_wire_bytes = 0
        self.num_body_bytes = 0

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do for it but to ignore what comes."""
        return not (self.is_reading or self.is_running or self.num_unsent_bytes)


def _nobody() -> None:
    """Does nothing: no application waits."""


def _since(began_at: float | None, now: float) -> float:
    return 0.0 if began_at is None else now - began_at


class Http3Session:
    """The server's side of one connection."""

    def __init__(
        self,
        quic: BoundedConnection,
        budget: MemoryBudget,
        limits: Http3Limits,
        host: RequestHost,
        now: float,
    ) -> None:
        """Sends SETTINGS. `budget`: for data held for the client."""
        self._quic = quic
        self._budget = budget
        self._limits = limits
        self._host = host
        settings = SETTINGS if limits.webtransport else {}
        self._framing = Framing(quic, limits.max_header_bytes, limits.max_headers, settings)
        self._control = TokenBucket(_CONTROL, now)
        self._streams: dict[int, RequestStream] = {}
        self._next_stream_id = 0
        """Above all request streams that were served."""
        self._is_draining = False
        self._session_id: int | None = None
        """Stream of the open WebTransport session."""

    @property
    def num_requests(self) -> int:
        """Under way: the application works on them, or their response is not acknowledged."""
        return sum(not stream.is_done for stream in self._streams.values() if stream.tunnel is None)

    @property
    def num_timed(self) -> int:
        """Streams that `expire` may end."""
        closing = (
            stream.tunnel is not None and stream.tunnel.closed_since is not None
            for stream in self._streams.values()
        )
        return self.num_requests + sum(closing)

    @property
    def num_running(self) -> int:
        """The application works on them."""
        return sum(stream.is_running for stream in self._streams.values())

    # From the client. All raise ConnectionFault.

    def received(self, stream_id: int, data: bytes, has_ended: bool, now: float) -> None:
        """Bytes of a stream came; `has_ended`: no more will follow."""
        if stream_id % 4:
            if not self._control.take(len(data), now):
                raise ConnectionFault(H3Code.EXCESSIVE_LOAD.value, "too much on control streams")
            self._framing.control_bytes(stream_id, data, has_ended)
            return
        stream = self._streams.get(stream_id) or self._open(stream_id, now)
        stream.client_ended |= has_ended
        if stream.tunnel is not None and not self._control.take(len(data), now):
            raise ConnectionFault(H3Code.EXCESSIVE_LOAD.value, "too much on a session's stream")
        for at in range(0, max(1, len(data)), _READ_BYTES):
            if not stream.is_reading:
                break
            piece = data[at : at + _READ_BYTES]
            stream.num_wire_bytes += len(piece)
            ends = has_ended and at + _READ_BYTES >= len(data)
            for event in self._framing.request_bytes(stream_id, piece, ends):
                if isinstance(event, SessionData):
                    rest = data[at + _READ_BYTES :]
                    self._session_stream(stream, event, rest, has_ended, now)
                    return
                self._frame(stream, event, now)
            if self._is_padded(stream):
                raise ConnectionFault(H3Code.EXCESSIVE_LOAD.value, "too much that is to be ignored")
        if has_ended and stream.is_reading:
            if stream.exchange is None and stream.tunnel is None:
                self._abort(stream, H3Code.REQUEST_INCOMPLETE, now)
            stream.is_reading = False
        self._settle(stream, now)

    def reset(self, stream_id: int, now: float) -> None:
        """The client gave its side of a stream up, and with it the request."""
        if stream_id % 4:
            self._framing.control_reset(stream_id)
            return
        stream = self._streams.get(stream_id)
        if stream is None:  # without data; unless it is reset from this side too, it stays open
            self._framing.reject(stream_id, H3Code.REQUEST_INCOMPLETE)
            return
        stream.client_ended = True
        if stream.is_reading:  # otherwise it was told that nothing more is read
            self._abort(stream, H3Code.REQUEST_CANCELLED, now)
        self._settle(stream, now)

    def stopped(self, stream_id: int, now: float) -> None:
        """The client does not want the response."""
        if stream_id % 4:
            self._framing.control_stopped(stream_id)
            return
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._abort(stream, H3Code.REQUEST_CANCELLED, now)
            self._settle(stream, now)

    def acknowledged(self, now: float) -> None:
        """The client may have acknowledged something."""
        for stream in [it for it in self._streams.values() if it.num_unsent_bytes]:
            self._settle(stream, now)

    def lost(self) -> None:
        """The connection has ended. Applications may continue, but nothing is sent any more."""
        self._session_id = None
        for stream in list(self._streams.values()):
            if stream.exchange is not None:
                stream.exchange.client_gone()
            stream.num_unsent_bytes = 0
            stream.is_reading, stream.client_ended = False, True
            stream.wake()
            self._uncount(stream)
        self._streams.clear()
        self._budget.clear()
        # The host knows this session. What refers to it is freed with it, not collected later.
        del self._host, self._framing, self._quic

    # From the application.

    def receive(self, stream: RequestStream, now: float) -> Message | None:
        """The next message for the application; None: it has to wait."""
        assert stream.exchange is not None
        message = stream.exchange.receive(now)
        self._settle(stream, now)
        return message

    def send(self, stream: RequestStream, message: Message, now: float) -> None:
        """A message of the application. Raises RuntimeError, ValueError, KeyError or TypeError if
        that is none it may send now."""
        assert stream.exchange is not None
        self._perform(stream, stream.exchange.send(message), now)
        self._settle(stream, now)

    def abort(self, stream: RequestStream, now: float) -> None:
        """The application does not want the client to take its response for whole."""
        if self._streams.get(stream.stream_id) is stream:
            self._abort(stream, H3Code.INTERNAL_ERROR, now)
            self._settle(stream, now)

    def must_wait(self, stream: RequestStream) -> bool:
        """Whether the application has to wait before it sends more."""
        return stream.num_unsent_bytes > self._limits.max_unsent_bytes

    def returned(self, stream: RequestStream, now: float) -> None:
        """The application has returned or failed."""
        assert stream.exchange is not None
        stream.is_running = False
        self._perform(stream, stream.exchange.returned(), now)
        self._settle(stream, now)

    # Time, and the end.

    def expire(self, now: float) -> list[RequestStream]:
        """End what has taken too long; returns the requests whose application must be cancelled."""
        limits, late = self._limits, []
        for stream in list(self._streams.values()):
            exchange = stream.exchange
            if exchange is not None and exchange.waits_for_body_s(now) > limits.body_timeout_s:
                late_body = self._host.worded(_LATE_BODY, exchange.request)
                self._perform(stream, exchange.refuse(late_body), now)
            is_late = now - stream.opened_at > limits.header_timeout_s
            if exchange is None and stream.tunnel is None and stream.is_reading and is_late:
                self._refuse(stream, _LATE, now, has_body=False)
            tunnel = stream.tunnel
            if tunnel is not None and _since(tunnel.closed_since, now) > limits.close_timeout_s:
                tunnel.closed_since = None
                self._abort(stream, H3Code.NO_ERROR, now)
            if _since(stream.blocked_since, now) > limits.write_timeout_s:
                self._abort(stream, H3Code.REQUEST_CANCELLED, now)
            if stream.is_running and _since(stream.gone_since, now) > limits.cancel_grace_s:
                late.append(stream)
            self._settle(stream, now)
        return late

    def drain(self) -> None:
        """Tell the client to send no more requests, and reject any further ones."""
        if not self._is_draining:
            self._is_draining = True
            self._framing.go_away(self._next_stream_id)

    # WebTransport.

    def send_capsule(self, capsule: bytes, now: float) -> None:
        """Send a capsule on the stream of the open session, if there is one."""
        stream = self._session_stream_of(self._session_id)
        if stream is not None:
            self._perform(stream, [SendData(capsule, False)], now)
            self._settle(stream, now)

    def close_session(self, close: Close, now: float) -> None:
        """End the open session, if there is one. Its client has `close_timeout_s` to end it too."""
        stream = self._session_stream_of(self._session_id)
        self._session_id = None
        if stream is not None and stream.tunnel is not None:
            stream.tunnel.closed_since = now
            self._perform(stream, [SendData(close.capsule(), True)], now)
            self._settle(stream, now)

    def discard(self, stream_id: int, now: float, *, has_ended: bool) -> None:
        """End a stream of a session that is over, and ignore what still comes on it; `has_ended`:
        nothing does."""
        self._framing.reject(stream_id, H3Code.WEBTRANSPORT_SESSION_GONE)
        if not has_ended:
            stream = self._streams[stream_id] = RequestStream(stream_id, now)
            stream.is_reading = False

    def _session_stream_of(self, session_id: int | None) -> RequestStream | None:
        return None if session_id is None else self._streams.get(session_id)

    def _session_stream(
        self, stream: RequestStream, first: SessionData, rest: bytes, has_ended: bool, now: float
    ) -> None:
        """A stream turns out to be of a session: of the one that is open, or of none."""
        if self._session_id is None or first.session_id != self._session_id:
            self._abort(stream, H3Code.WEBTRANSPORT_STREAM_REJECTED, now)
            self._settle(stream, now)
            return
        stream.is_reading = False
        self._hold(stream, 0)
        self._uncount(stream)  # its new owner counts it
        del self._streams[stream.stream_id]
        self._framing.forget(stream.stream_id)
        self._host.session_received(stream.stream_id, first.data + rest, has_ended)

    def _connect(self, stream: RequestStream, request: Request, now: float) -> None:
        """An extended CONNECT."""
        if not self._limits.webtransport or request.protocol not in PROTOCOLS:
            self._refuse(stream, self._host.worded(_NO_TUNNEL, request), now, has_body=True)
            return
        if self._session_id is not None:  # none of them has flow control of its own
            self._abort(stream, H3Code.REQUEST_REJECTED, now)
            return
        if (refusal := self._host.session_refusal(request)) is not None:
            self._refuse(stream, self._host.worded(refusal, request), now, has_body=True)
            return
        stream.tunnel = Tunnel()
        self._session_id = stream.stream_id
        self._perform(stream, [SendHeaders([(b":status", b"200")], False)], now)
        self._host.session_opened(stream.stream_id)

    def _capsules(
        self, stream: RequestStream, tunnel: Tunnel, data: bytes, has_ended: bool, now: float
    ) -> None:
        """Bytes on the stream of a session."""
        try:
            close = tunnel.capsules.feed(data)
            if has_ended and close is None and not tunnel.capsules.at_boundary:
                raise MalformedFrameError("a session ended inside a capsule")
        except MalformedFrameError:
            self._abort(stream, H3Code.MESSAGE_ERROR, now)
            return
        if close is None and has_ended:
            close = Close()
        if close is None or self._session_id != stream.stream_id:
            return
        self._session_id = None
        tunnel.closed_since = now
        self._perform(stream, [SendData(b"", True)], now)
        self._host.session_closed(stream.stream_id, close)

    # Streams.

    def _open(self, stream_id: int, now: float) -> RequestStream:
        stream = self._streams[stream_id] = RequestStream(stream_id, now)
        stream.is_counted = self._host.hold_stream()
        is_no_session = self._session_id is None
        if not stream.is_counted or (self._is_draining and is_no_session):
            self._abort(stream, H3Code.REQUEST_REJECTED, now)
        elif not self._is_draining:
            self._next_stream_id = max(self._next_stream_id, stream_id + 4)
        return stream

    def _is_padded(self, stream: RequestStream) -> bool:
        overhead = stream.num_wire_bytes - stream.num_body_bytes
        allowed = self._limits.max_header_bytes + _OVERHEAD_BYTES + stream.num_body_bytes // 8
        return overhead > allowed

    def _frame(self, stream: RequestStream, event: FrameEvent, now: float) -> None:
        if not stream.is_reading:
            return
        match event:
            case Fields(headers, has_ended) if stream.exchange is None and stream.tunnel is None:
                self._begin(stream, headers, has_ended, now)
            case Fields() | TooManyFields() if stream.tunnel is not None:
                self._abort(stream, H3Code.MESSAGE_ERROR, now)  # it has no trailers
            case Body(data, has_ended) if stream.tunnel is not None:
                stream.num_body_bytes += len(data)
                self._capsules(stream, stream.tunnel, data, has_ended, now)
            case Fields(headers, has_ended):
                assert stream.exchange is not None
                try:
                    check_trailers(headers)
                except MalformedFrameError:
                    self._abort(stream, H3Code.MESSAGE_ERROR, now)
                else:
                    stream.exchange.body_came(b"", has_ended, now)
                    stream.wake()
            case Body(data, has_ended):
                assert stream.exchange is not None
                stream.num_body_bytes += len(data)
                stream.exchange.body_came(data, has_ended, now)
                stream.wake()
            case Malformed():
                self._abort(stream, H3Code.MESSAGE_ERROR, now)
            case TooManyFields():
                if stream.exchange is None:
                    self._refuse(stream, _TOO_LARGE, now, has_body=False)
                else:  # of trailers
                    self._abort(stream, H3Code.EXCESSIVE_LOAD, now)

    def _begin(self, stream: RequestStream, headers: Headers, has_ended: bool, now: float) -> None:
        if self._is_draining and stream.stream_id >= self._next_stream_id:
            self._abort(stream, H3Code.REQUEST_REJECTED, now)
            return
        try:
            request = read_request(headers)
        except MalformedFrameError:
            self._abort(stream, H3Code.MESSAGE_ERROR, now)
            return
        if not isinstance(request, Refusal) and request.protocol:
            self._connect(stream, request, now)
            if has_ended and stream.tunnel is not None:
                self._capsules(stream, stream.tunnel, b"", True, now)
            return
        if not isinstance(request, Refusal):
            is_full = self.num_running >= self._limits.max_requests_per_connection
            if is_full or not self._host.may_begin():
                request = self._host.worded(_FULL, request)
        if isinstance(request, Refusal):
            has_body = (b":method", b"HEAD") not in headers
            self._refuse(stream, request, now, has_body=has_body)
            return
        stream.exchange = Exchange(request, has_ended=has_ended)
        stream.is_running = True
        self._host.begin(stream)

    def _refuse(
        self, stream: RequestStream, refusal: Refusal, now: float, *, has_body: bool
    ) -> None:
        """Answer without the application."""
        self._perform(stream, answer(refusal, has_body=has_body), now)
        self._quic.stop_reading(stream.stream_id, H3Code.NO_ERROR.value)
        self._ignore(stream)
        self._settle(stream, now)

    def _abort(self, stream: RequestStream, code: H3Code, now: float) -> None:
        """End both directions, whatever was sent."""
        if self._session_id == stream.stream_id:
            self._session_id = None
            self._host.session_closed(stream.stream_id, None)
        self._framing.reject(stream.stream_id, code)
        if stream.exchange is not None:
            stream.exchange.client_gone()
            if stream.is_running and stream.gone_since is None:
                stream.gone_since = now
        self._ignore(stream)

    def _ignore(self, stream: RequestStream) -> None:
        """Ignore further data on the stream."""
        stream.is_reading = False
        self._framing.stop_reading(stream.stream_id)
        stream.wake()

    def _perform(self, stream: RequestStream, actions: list[Action], now: float) -> None:
        for action in actions:
            if isinstance(action, SendHeaders) and all(
                name != b"date" for name, _ in action.headers
            ):
                action = replace(action, headers=[*action.headers, (b"date", self._host.date())])
            if not self._framing.perform(stream.stream_id, action):
                self._abort(stream, H3Code.REQUEST_CANCELLED, now)
                return

    def _settle(self, stream: RequestStream, now: float) -> None:
        """Count what the stream holds now, and let it go when it is done."""
        if self._streams.get(stream.stream_id) is not stream:
            return
        if stream.is_reading and stream.exchange is not None and stream.exchange.is_over:
            self._ignore(stream)
        was_blocked = self.must_wait(stream)
        if not self._hold(stream, self._measure(stream)):
            self._abort(stream, H3Code.EXCESSIVE_LOAD, now)
            self._hold(stream, min(stream.num_held_bytes, self._measure(stream)))
        is_blocked = self.must_wait(stream)
        is_flushing = bool(stream.num_unsent_bytes) and not stream.is_running
        if not (is_blocked or is_flushing):
            stream.blocked_since = None
        elif stream.blocked_since is None:
            stream.blocked_since = now
        if was_blocked and not is_blocked:
            stream.wake()
        if stream.is_done:
            self._uncount(stream)
            if stream.client_ended:
                del self._streams[stream.stream_id]
                self._framing.forget(stream.stream_id)

    def _measure(self, stream: RequestStream) -> int:
        """The bytes that a stream holds; the client gets no room for those that are not read."""
        exchange, stream_id = stream.exchange, stream.stream_id
        stream.num_unsent_bytes = self._quic.num_unacknowledged_bytes(stream_id)
        num_unread = 0 if exchange is None else exchange.num_unread_bytes
        self._quic.set_unread(stream_id, num_unread)
        num_bytes = stream.num_unsent_bytes + num_unread
        if stream.is_reading:
            num_bytes += self._framing.num_held_bytes(stream_id)
        if stream.tunnel is not None:
            num_bytes += stream.tunnel.capsules.num_held
        return num_bytes + (0 if stream.is_done else _REQUEST_BYTES)

    def _hold(self, stream: RequestStream, num_bytes: int) -> bool:
        more = num_bytes - stream.num_held_bytes
        if more <= 0:
            self._budget.give_back(-more)
        elif not self._budget.take(more):
            return False
        stream.num_held_bytes = num_bytes
        return True

    def _uncount(self, stream: RequestStream) -> None:
        if stream.is_counted:
            stream.is_counted = False
            self._host.release_stream()
