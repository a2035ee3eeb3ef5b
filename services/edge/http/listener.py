"""HTTP/1.1 and HTTP/2 over TCP: accepts connections, within the limits of both doors, and has
anycorn speak the protocols."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import anyio.abc
import structlog
from anycorn.config import Config
from anycorn.events import Closed, Event, Updated
from anycorn.tcp_server import TCPServer
from anycorn.worker_context import WorkerContext
from anyio.streams.tls import TLSStream
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.errors import ConfigError, DrainingError, OverloadedError
from services.edge.http.config import HttpConfig
from services.edge.http.door import HttpDoor
from services.edge.http.exchange import CONNECTION
from services.edge.http.http1 import ClientClosed, use_ours
from services.edge.quic import memory
from services.edge.quic.limits import ListenerQuotas, MemoryBudget
from services.edge.quotas import Count

log = structlog.get_logger()

_ALPN: Final = ["h2", "http/1.1"]
_LINGER_S: Final = 5.0
"""How long a connection that is closed may take for what was not sent yet."""
_END_S: Final = 1.0
"""How long the connections may take to end, once their replies have."""


class HttpListener:
    """All TCP connections of one edge."""

    def __init__(self, app: ASGIApp, door: HttpDoor) -> None:
        self.app = app
        self._door = door
        self._config = _anycorn_config(door.config)
        self._context = WorkerContext(None)
        self._server: asyncio.Server | None = None
        self._tls: ssl.SSLContext | None = None
        self._connections: dict[asyncio.Task[None], Callable[[], None]] = {}
        """What serves each, and what closes it at once."""

    @property
    def num_connections(self) -> int:
        """Open now."""
        return len(self._connections)

    async def start(
        self, host: str, port: int, certificate: Path, key: Path, *, alt_svc: str = ""
    ) -> int:
        """Listen and return the bound port. `alt_svc`: where the same is served besides, as the
        header of that name says it; told over TLS alone (RFC 7838, section 2.1). Raises
        ConfigError."""
        if self._door.config.is_encrypted:
            self._config.alt_svc_headers = [alt_svc] if alt_svc else []  # type: ignore[misc]
            self._tls = _tls_context()
            await self.renew(certificate, key)
        try:
            self._server = await asyncio.start_server(self._accept, host, port)
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
        if self._server is None:
            return
        self._server.close()
        await self._context.terminated.set()  # who asks for nothing is closed at once
        telemetry = self._door.context.telemetry
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(telemetry.idle.wait(), drain_s)
        self._door.fail_replies(
            DrainingError("this edge is shutting down; send the request to another")
        )
        if self._connections:
            await asyncio.wait(self._connections, timeout=_END_S)
        for abort in list(self._connections.values()):
            abort()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        limits = self._door.limits
        host, port = (writer.get_extra_info("peername") or ("127.0.0.1", 0))[:2]
        prefix = limits.limits.prefixes.of(host)
        if self._door.proxies.trusts(host):
            prefix = f"{host} {port}"  # by itself: it is of many clients
        try:
            release, budget = self._admit(prefix, limits)
        except OverloadedError:
            self._door.context.telemetry.refused("connections")
            writer.transport.abort()
            return
        self._connections[task] = writer.transport.abort
        try:
            await self._serve(SocketStream(reader, writer), writer.transport.abort, budget)
        except Exception:
            # A defect, or bytes that anycorn did not expect, end this connection and no other.
            log.exception("http connection failed")
        finally:
            del self._connections[task]
            writer.transport.abort()  # nothing is left to be sent
            release()

    def _admit(
        self, prefix: str, limits: ListenerQuotas
    ) -> tuple[Callable[[], None], MemoryBudget]:
        """What gives the connection's place back, and its memory. Raises OverloadedError."""
        most = self._door.config.max_connections
        if len(self._connections) >= most:
            raise OverloadedError(f"there are {most} connections, and no more are taken")
        if 0 < limits.limits.max_resident_bytes < memory.resident_bytes():
            raise OverloadedError("this edge has no memory to spare; try again later")
        limits.quotas.hold(prefix, Count.CONNECTIONS, asyncio.get_running_loop().time())
        address, budget = limits.connection_opened(prefix)
        telemetry = self._door.context.telemetry
        telemetry.connections(+1)

        def release() -> None:
            telemetry.connections(-1)
            budget.clear()
            limits.connection_ended(address)

        return release, budget

    async def _serve(
        self, raw: SocketStream, abort: Callable[[], None], budget: MemoryBudget
    ) -> None:
        stream: anyio.abc.ByteStream = raw
        if self._tls is not None:
            try:
                async with asyncio.timeout(self._door.limits.limits.handshake_timeout_s):
                    stream = await TLSStream.wrap(
                        raw, server_side=True, ssl_context=self._tls, standard_compatible=False
                    )
            except (TimeoutError, OSError, anyio.BrokenResourceError, anyio.EndOfStream):
                self._door.context.telemetry.refused("handshake timeout")
                return
        app = _ConnectionApp(self.app, abort, budget)
        await _Server(app, self._config, self._context, {}, stream).run()  # type: ignore[arg-type]


class _Server(TCPServer):
    """One connection. Anycorn's own lasts until its timeout for idle connections, though its client
    has closed it."""

    _is_read = False

    async def _read_data(self) -> None:
        use_ours(self.protocol, self.stream, self.config.h11_max_incomplete_size)
        try:
            await super()._read_data()
        except ClientClosed:
            await self.protocol.handle(Closed())
        self._is_read = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        """An answer that ends now must not begin to wait for another request."""
        if not (self._is_read and isinstance(event, Updated)):
            await super().protocol_send(event)


class _ConnectionApp:
    """The application, told which connection its requests are of; an AppWrapper of anycorn."""

    def __init__(self, app: ASGIApp, abort: Callable[[], None], budget: MemoryBudget) -> None:
        self.app = app
        self._connection = {
            "secret": secrets.token_bytes(16),
            "abort": abort,
            "budget": budget,
        }

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, sync_spawn: object, call_soon: object
    ) -> None:
        """Serve one request."""
        scope["extensions"] = {**scope.get("extensions", {}), CONNECTION: self._connection}
        await self.app(scope, receive, send)


class SocketStream(anyio.abc.SocketStream):
    """A connection of asyncio as anycorn reads and writes it. Anyio's own drops what was not sent
    yet when it is closed, and tells nobody how to close it at once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def _raw_socket(self) -> socket.socket:
        found: socket.socket = self._writer.get_extra_info("socket")
        return found

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Raises EndOfStream, BrokenResourceError."""
        try:
            data = await self._reader.read(max_bytes)
        except OSError as error:
            raise anyio.BrokenResourceError from error
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        """Raises BrokenResourceError. Returns once there is room for more."""
        try:
            self._writer.write(item)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:
            raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        """Nothing more will be sent."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write_eof()

    async def aclose(self) -> None:
        """Close once everything is sent, or after a while."""
        self._writer.close()
        try:
            async with asyncio.timeout(_LINGER_S):
                await self._writer.wait_closed()
        except (TimeoutError, OSError):
            self._writer.transport.abort()


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
