"""HTTP/1.1 and HTTP/2 over TCP: accepts connections, within limits shared with QUIC, and has
anycorn speak the protocols."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, cast

import anyio
import anyio.abc
import h2.errors
import h2.exceptions
import h11
import structlog
from anycorn.config import Config
from anycorn.events import Closed, Event, Updated
from anycorn.protocol import ProtocolWrapper
from anycorn.protocol.h2 import H2Protocol
from anycorn.protocol.http_stream import HTTPStream
from anycorn.tcp_server import TCPServer
from anycorn.worker_context import WorkerContext
from anyio.streams.tls import TLSStream
from priority.priority import PriorityError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.errors import (
    ConfigError,
    DrainingError,
    FrameTooLargeError,
    HeadTooLargeError,
    OutriderError,
    OverloadedError,
)
from outrider.telemetry.logs import failure_place
from services.edge.http.config import HttpConfig
from services.edge.http.exchange import CONNECTION
from services.edge.http.frame_gate import BURST_S, FrameGate, FrameLimits
from services.edge.http.frontend import HttpFrontend
from services.edge.http.http1 import ClientClosed, Http1, use_ours
from services.edge.http.http2 import Http2
from services.edge.http.http2_reset import StreamResets
from services.edge.http.loop_turns import LoopTurns, Meter
from services.edge.http.paced_stream import PacedStream, SocketStream, encrypted_push
from services.edge.http.waiting_connections import WaitingConnections
from services.edge.limits import memory
from services.edge.limits.listener import MemoryBudget
from services.edge.limits.loop_time import billed
from services.edge.limits.quotas import Count, Rate, RateLimit, TokenBucket

log = structlog.get_logger()

_ALPN: Final = ["h2", "http/1.1"]
_BACKLOG: Final = 4096
"""Connections that wait to be accepted; the system has a bound of its own (somaxconn). Where more
come at once, their clients believe that they are connected, and wait for minutes."""
_END_S: Final = 1.0
"""How long the connections may take to end, once their replies have."""
_FAREWELL_S: Final = 1.0
"""How long a client that is refused may take to read why."""
_FAREWELL_BYTES: Final = 1 << 20
"""Most bytes read and dropped before closing: a socket closed with unread data resets its
connection, and the client might never read the reason."""
_MAX_TURNED_AWAY: Final = 64
"""Connections that are told at a time that there is no room; more are closed without a word."""
_WAIT_S: Final = 120.0
"""How long a connection may wait for room."""
_LOOK_S: Final = 1.0
"""How often those that wait look for room by themselves."""
_LEAST_IDLE_S: Final = 1.0
"""How long a connection may be idle while others of its address wait for room."""
_NO_ROOM: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 5\r\n"
    b"content-length: 57\r\nconnection: close\r\n\r\n"
    b"this edge has no room for more connections; close others\n"
)
_TLS_NO_ROOM: Final = b"\x15\x03\x03\x00\x02\x02\x50"
"""A fatal alert, internal_error (RFC 8446, section 6.2): TLS has none for a lack of room."""
_GOODBYE_S: Final = 5.0
"""How long an HTTP/2 client may take to read its last answer and close. Its WINDOW_UPDATE frames
would have the system drop what was not sent yet of a socket that is closed."""
_WARY_BURST_S: Final = 1.0
"""The burst of connections from a prefix that exceeded the limits of frames again and again."""
_TRACEBACKS: Final = RateLimit(per_s=1 / 60, burst=1.0)
_CLIENTS_FAULTS: Final = (
    h2.exceptions.H2Error,
    h11.ProtocolError,
    PriorityError,
    ssl.SSLError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    ConnectionError,
)
"""Exceptions caused by malformed bytes and by clients that vanish."""


class HttpListener:
    """All TCP connections of one edge."""

    def __init__(self, app: ASGIApp, frontend: HttpFrontend) -> None:
        self.app = app
        self.frontend = frontend
        self._config = _anycorn_config(frontend.config)
        self._context = WorkerContext(None)
        self._server: asyncio.Server | None = None
        self._tls: ssl.SSLContext | None = None
        self._connections: dict[asyncio.Task[None], Callable[[], None]] = {}
        """Task that serves each connection, and the function that closes it at once."""
        self._waiting = WaitingConnections(frontend.config.max_waiting_connections)
        """Connections for which there is no room yet."""
        self._num_turned_away = 0
        """Connections without room that are told so now."""
        self._handshakes: set[Callable[[], None]] = set()
        """Functions that close connections whose handshake is still running."""
        self._turns = LoopTurns(frontend.limits.loop_uses, frontend.config.max_connections)
        self._tracebacks = TokenBucket(_TRACEBACKS, asyncio.get_running_loop().time())

    @property
    def num_connections(self) -> int:
        """Open now."""
        return len(self._connections)

    @property
    def num_waiting(self) -> int:
        """Connections for which there is no room yet."""
        return len(self._waiting)

    async def start(
        self,
        host: str,
        port: int,
        certificate: Path,
        key: Path,
        *,
        alt_svc: str = "",
        opened: socket.socket | None = None,
    ) -> int:
        """Listen and return the bound port. `alt_svc`: value of the Alt-Svc header, sent only over
        TLS (RFC 7838, section 2.1). `opened`: a socket that already listens, which this listener
        then owns. Raises ConfigError."""
        if self.frontend.config.is_encrypted:
            self._config.alt_svc_headers = [alt_svc] if alt_svc else []  # type: ignore[misc]
            self._tls = _tls_context()
            await self.renew(certificate, key)
        try:
            if opened is None:
                self._server = await asyncio.start_server(
                    self._accept, host, port, backlog=_BACKLOG
                )
            else:
                self._server = await asyncio.start_server(self._accept, sock=opened)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on TCP {host}:{port} for HTTP ({error.strerror}); set another "
                "http.port (`outrider up --http-port`), or 0 for any"
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def renew(self, certificate: Path, key: Path) -> None:
        """Use this certificate in handshakes that begin from now on. Raises ConfigError."""
        if self._tls is None:
            return
        try:
            await asyncio.to_thread(self._tls.load_cert_chain, certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"cannot read certificate {certificate} with private_key {key}: {error}"
            ) from error

    async def stop(self, drain_s: float) -> None:
        """Take nothing more, give replies under way `drain_s`, then end them and close. The edge
        drains by then. May be called without a start."""
        self.frontend.typed_texts.close()
        if self._server is None:
            return
        self._server.close()
        while self._waiting:
            self._waiting.wake()  # they find the edge closed
        await self._context.terminated.set()  # who asks for nothing is closed at once
        for abort in list(self._handshakes):
            abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await self.frontend.context.telemetry.idle.wait()
                while self._connections:
                    await asyncio.wait(self._connections)
        self.frontend.fail_replies(
            DrainingError("this edge is shutting down; send the request to another")
        )
        if self._connections:
            await asyncio.wait(self._connections, timeout=_END_S)
        for abort in list(self._connections.values()):
            abort()
        if self._connections:
            await asyncio.wait(self._connections)
        self._turns.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        host, port = (writer.get_extra_info("peername") or ("127.0.0.1", 0))[:2]
        prefix = self.frontend.limits.limits.prefixes.of(host)
        if self.frontend.proxies.trusts(host):
            prefix = f"{host} {port}"  # by itself: it is of many clients
        try:
            release, budget = await self._room(prefix, cast(asyncio.Transport, writer.transport))
        except OverloadedError:
            self.frontend.context.telemetry.refused("connections")
            await self._turn_away(reader, writer)
            writer.transport.abort()
            return
        self._connections[task] = writer.transport.abort
        meter = Meter(prefix)
        raw = SocketStream(reader, writer)
        try:
            await billed(self._serve(raw, writer.transport.abort, budget, meter), meter.add)
        except Exception as error:
            # A defect, or bytes that anycorn did not expect, end this connection and no other.
            self._report(error)
        finally:
            self._turns.bill(meter)
            del self._connections[task]
            writer.transport.abort()  # nothing is left to be sent
            release()
            self._waiting.wake(prefix)

    async def _room(
        self, prefix: str, transport: asyncio.ReadTransport
    ) -> tuple[Callable[[], None], MemoryBudget]:
        """Count the connection, as `_admit` does, once there is room for it: until then it waits
        unread, behind others of its address. Raises OverloadedError if too many wait already, or
        it has waited for `_WAIT_S`."""
        if 0 < self.frontend.limits.limits.max_resident_bytes < memory.resident_bytes():
            raise OverloadedError("this edge has no memory to spare; try again later")
        if not self._waiting.of(prefix):
            with contextlib.suppress(OverloadedError):
                return self._admit(prefix)
        transport.pause_reading()
        loop = asyncio.get_running_loop()
        until, had_its_turn = loop.time() + _WAIT_S, False
        while not self._context.terminated.is_set():
            turn = loop.create_future()
            if not self._waiting.add(prefix, turn, is_first=had_its_turn):
                break
            try:
                while not turn.done() and loop.time() < until:
                    await asyncio.wait((turn,), timeout=_LOOK_S)
                    if self._waiting.is_next(prefix, turn):
                        break  # another process of this edge tells nobody of room
            finally:
                self._waiting.remove(prefix, turn)
            with contextlib.suppress(OverloadedError):
                admitted = self._admit(prefix)
                transport.resume_reading()
                return admitted
            if loop.time() >= until:
                break
            had_its_turn = True
        transport.resume_reading()
        raise OverloadedError("this edge has no room for more connections; close others")

    async def _turn_away(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Close a connection for which there is no room, and say so: by 503, or by an alert of TLS.
        What its client sends meanwhile is dropped: a socket closed with unread data would reset its
        connection, and the answer be lost."""
        if self._num_turned_away >= _MAX_TURNED_AWAY:
            return
        self._num_turned_away += 1
        try:
            writer.write(_NO_ROOM if self._tls is None else _TLS_NO_ROOM)
            async with asyncio.timeout(_FAREWELL_S):
                writer.write_eof()
                left = _FAREWELL_BYTES
                while left > 0 and (data := await reader.read(left)):
                    left -= len(data)
        except (OSError, TimeoutError):
            pass  # it left by itself, or does not want to
        finally:
            self._num_turned_away -= 1

    def _report(self, error: Exception) -> None:
        """Log one line for all errors of an interval; a traceback, for defects only, once a
        minute."""
        faults = list(_leaves(error))
        clients = all(isinstance(fault, _CLIENTS_FAULTS) for fault in faults)
        reason = "broken http" if clients else "http failure"
        self.frontend.context.telemetry.refused(reason, error=failure_place(faults[0]))
        if not clients and self._tracebacks.take(1, asyncio.get_running_loop().time()):
            log.error("http_connection_failed", exc_info=error)

    def _admit(self, prefix: str) -> tuple[Callable[[], None], MemoryBudget]:
        """Count the connection; returns a function that releases it, and its memory budget. Raises
        OverloadedError."""
        limits, most = self.frontend.limits, self.frontend.config.max_connections
        if len(self._connections) >= most:
            raise OverloadedError(f"this edge already serves {most} connections; try again later")
        limits.quotas.hold(prefix, Count.CONNECTIONS, asyncio.get_running_loop().time())
        address, budget = limits.connection_opened(prefix)
        telemetry = self.frontend.context.telemetry
        telemetry.connections(+1)

        def release() -> None:
            telemetry.connections(-1)
            budget.clear()
            limits.connection_ended(address)

        return release, budget

    async def _serve(
        self,
        raw: SocketStream,
        abort: Callable[[], None],
        budget: MemoryBudget,
        meter: Meter,
    ) -> None:
        await self._turns.take(meter)
        if self._context.terminated.is_set():
            return
        stream: anyio.abc.ByteStream = raw
        push: Callable[[bytes], None] = raw.push
        if self._tls is not None:
            self._handshakes.add(abort)
            try:
                async with asyncio.timeout(self.frontend.limits.limits.handshake_timeout_s):
                    stream = encrypted = await TLSStream.wrap(
                        raw, server_side=True, ssl_context=self._tls, standard_compatible=False
                    )
                    push = encrypted_push(encrypted, raw)
            except (TimeoutError, OSError, anyio.BrokenResourceError, anyio.EndOfStream):
                self.frontend.context.telemetry.refused("handshake timeout")
                return
            finally:
                self._handshakes.discard(abort)
        now = asyncio.get_running_loop().time()
        gate = FrameGate(self._frame_limits(meter.prefix, now), now)
        paced = PacedStream(stream, gate, lambda: self._turns.take(meter), push)

        def is_wanted() -> bool:
            return self._waiting.of(meter.prefix) > 0

        app = _ConnectionApp(self.app, abort, budget, meter, is_wanted)
        server = _Server(app, self._config, self._context, paced, raw, is_wanted)
        app.protocol = lambda: server.http_protocol
        app.resets = StreamResets(app.protocol, abort)
        try:
            await server.run()
        finally:
            server.forget()
            gate.forget()
        if server.refusal is not None:
            self._refused(meter.prefix, server.refusal)

    def _frame_limits(self, prefix: str, now: float) -> FrameLimits:
        config, quotas = self.frontend.config, self.frontend.limits.quotas
        is_wary = quotas.level(prefix, Rate.FLOODS, now) < 1
        return FrameLimits(
            control_frames_per_s=config.max_control_frames_per_s,
            resets_per_s=config.max_resets_per_s,
            burst_s=_WARY_BURST_S if is_wary else BURST_S,
            max_header_bytes=config.max_header_bytes,
        )

    def _refused(self, prefix: str, error: OutriderError) -> None:
        self.frontend.context.telemetry.refused("http frames", error=str(error))
        with contextlib.suppress(OverloadedError):
            now = asyncio.get_running_loop().time()
            self.frontend.limits.quotas.spend(prefix, Rate.FLOODS, 1, now)


class _Server(TCPServer):
    """One connection. Anycorn's own lasts until its timeout for idle connections, though its client
    has closed it."""

    _is_read = False
    _protocol: ProtocolWrapper | None = None

    def __init__(
        self,
        app: _ConnectionApp,
        config: Config,
        context: WorkerContext,
        paced: PacedStream,
        raw: SocketStream,
        is_wanted: Callable[[], bool],
    ) -> None:
        """`is_wanted`: whether others wait for this connection's place."""
        super().__init__(app, config, context, {}, paced)  # type: ignore[arg-type]
        self._paced = paced
        self._raw = raw
        self._is_wanted = is_wanted
        self.refusal: OutriderError | None = None
        """Why the connection was closed, if its frames exceeded a limit."""

    @property
    def protocol(self) -> ProtocolWrapper:
        """Set by anycorn once it is known how the connection begins."""
        assert self._protocol is not None
        return self._protocol

    @protocol.setter
    def protocol(self, made: ProtocolWrapper) -> None:
        use_ours(made, self._paced, self, self.config.h11_max_incomplete_size)
        self._protocol = made

    def forget(self) -> None:
        """The connection is over: let go of what came over it. Its objects refer to each other, so
        they are there until garbage in cycles is looked for (outrider.process.settle)."""
        if isinstance(protocol := self.http_protocol, Http1 | Http2):
            protocol.forget()

    @property
    def may_push(self) -> bool:
        """Whether nothing waits to be sent, and the client reads; see Pushing.may_push. A holder of
        the lock still has bytes to write."""
        return not self.send_lock.locked() and self._raw.may_push

    def push(self, data: bytes) -> None:
        """Send without waiting; see Pushing.push."""
        try:
            self._paced.push(data)
        except ssl.SSLError:
            self._raw.abort()  # whoever reads is told

    @property
    def http_protocol(self) -> object:
        """HTTP/1.1 or HTTP/2, as anycorn has it; None before it is known."""
        return None if self._protocol is None else self._protocol.protocol

    async def _read_data(self) -> None:
        try:
            await super()._read_data()
        except ClientClosed:
            await self.protocol.handle(Closed())
        except (OverloadedError, FrameTooLargeError, HeadTooLargeError) as error:
            self.refusal = error
            await self._refuse(error)
        self._is_read = True
        await self.idle_task.stop()

    async def _refuse(self, error: OutriderError) -> None:
        """Close with a GOAWAY frame that gives the reason (RFC 9113, section 6.8)."""
        protocol = self.protocol.protocol
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                if isinstance(protocol, H2Protocol):
                    with contextlib.suppress(h2.exceptions.ProtocolError):
                        protocol.connection.close_connection(
                            _goaway_code(error), additional_data=str(error).encode()
                        )
                    await protocol._flush()
                await self.protocol.handle(Closed())
                await self._raw.send_eof()
                await self._discard()

    async def _discard(self) -> None:
        left = _FAREWELL_BYTES
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while left > 0:
                left -= len(await self._raw.receive())
                await self._paced.turn()

    @property
    def _has_served(self) -> bool:
        """Whether a request of it was served: only then it is idle, and not about to send one."""
        protocol = self.http_protocol
        if isinstance(protocol, Http2):
            return protocol.has_served
        return isinstance(protocol, Http1) and protocol.keep_alive_requests > 0

    async def _idle_timeout(self) -> None:
        """Close the connection once nothing has come for long enough, or nothing more may. Runs
        while nothing is under way."""
        protocol = self.http_protocol
        has_ended = isinstance(protocol, Http2) and protocol.is_leaving and protocol.has_served
        if not has_ended:
            timeout_s = self.config.keep_alive_timeout
            if self._has_served and self._is_wanted():
                timeout_s = min(timeout_s, _LEAST_IDLE_S)
            with self.context.move_on_after(timeout_s):
                await self.context.terminated.wait()
        if isinstance(protocol := self.http_protocol, Http2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await protocol.say_goodbye()
                    if has_ended:
                        await self._raw.send_eof()
                        await asyncio.Event().wait()  # until the connection is read to its end
        with anyio.CancelScope(shield=True):
            await self._initiate_server_close()

    async def protocol_send(self, event: Event) -> None:
        """An answer that ends now must not begin to wait for another request."""
        if not (self._is_read and isinstance(event, Updated)):
            await super().protocol_send(event)


class _ConnectionApp:
    """The application for the requests of one connection; an AppWrapper of anycorn."""

    def __init__(
        self,
        app: ASGIApp,
        abort: Callable[[], None],
        budget: MemoryBudget,
        meter: Meter,
        is_wanted: Callable[[], bool],
    ) -> None:
        """`is_wanted`: whether others wait for this connection's place."""
        self.app = app
        self._meter = meter
        self._is_wanted = is_wanted
        self._secret = secrets.token_bytes(16)
        self._budget = budget
        self._streams: set[object] = set()
        self.protocol: Callable[[], object] = lambda: None
        """HTTP/1.1 or HTTP/2, once it is known."""
        self.resets = StreamResets(self.protocol, abort)

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, sync_spawn: object, call_soon: object
    ) -> None:
        """Serve one request. Time until its answer begins is charged to its client; a chat's tokens
        are not."""
        connection = {
            "secret": self._secret,
            "abort": self.resets.abort_of(send),
            "push": self._push_of(send),
            "budget": self._budget,
            "streams": self._streams,
        }
        scope["extensions"] = {**scope.get("extensions", {}), CONNECTION: connection}
        is_answered = False
        is_http1 = scope.get("http_version", "").startswith("1")

        async def answer(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            if is_http1 and message["type"] == "http.response.start" and self._is_wanted():
                fields = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": fields}
            await send(message)

        async def serve() -> None:
            await self.app(scope, receive, answer)

        await billed(serve(), self._meter.add, lambda: not is_answered)

    def _push_of(self, send: object) -> Callable[[bytes], bool]:
        """A function that sends a piece of the response that uses `send`, at once or not at all; it
        returns whether it did."""
        protocol = self.protocol()
        stream = getattr(send, "__self__", None)
        if not isinstance(protocol, Http1 | Http2) or not isinstance(stream, HTTPStream):
            return lambda data: False
        return partial(protocol.push, stream.stream_id)


def _goaway_code(error: OutriderError) -> h2.errors.ErrorCodes:
    if isinstance(error, FrameTooLargeError):
        return h2.errors.ErrorCodes.FRAME_SIZE_ERROR
    return h2.errors.ErrorCodes.ENHANCE_YOUR_CALM


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


def _anycorn_config(config: HttpConfig) -> Config:
    made = Config()
    made.accesslog = None
    made.errorlog = None
    made.include_server_header = False
    made.h11_max_incomplete_size = config.max_header_bytes
    made.h2_max_header_list_size = config.max_header_bytes
    made.h2_max_concurrent_streams = config.max_streams_per_connection
    made.keep_alive_timeout = config.idle_timeout_s
    made.keep_alive_max_requests = config.max_requests_per_connection
    return made


def _tls_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    # A client that asks for it could make the edge compute without end.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context
