"""Servers: their limits, the interceptor for certificates, traces and errors, and health checks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry import context as otel_context

from outrider.errors import ConfigError, MalformedFrameError, OutriderError, UnavailableError
from outrider.rpc.authorization import Call, CallAuthorizer
from outrider.rpc.errors import abort, not_served
from outrider.telemetry import names
from outrider.telemetry.tracing import TraceParent, extract, span
from outrider.tls import PLAINTEXT, Tls

T = TypeVar("T")

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
MAX_STREAMS: Final = 1024
"""Calls of one connection under way at once; further ones wait at the client."""
MAX_CALLS: Final = 4096
"""Calls of all connections together; further ones are refused as RESOURCE_EXHAUSTED."""
MAX_CONNECTIONS: Final = 4096
"""Open at once, handshakes included; further ones are closed as they come."""
_MAX_METADATA_BYTES: Final = 16 * 1024
_MAX_METHOD_CHARS: Final = 100
"""Characters of an unknown one in the log."""

SERVING: Final[int] = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final[int] = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN_SERVICE: Final[int] = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

_OPTIONS = (
    # A client that died without closing its connection is noticed within 10 seconds. Its sessions
    # end then; before that their request ids cannot be used again.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Without it the clients' keepalive pings on idle streams end in GOAWAY "too many pings".
    ("grpc.http2.min_ping_interval_without_data_ms", 2_500),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
    # Clients that connect and send nothing are disconnected, during the handshake and after it.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
)


def make_server(
    tls: Tls = PLAINTEXT,
    *,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    max_streams: int = MAX_STREAMS,
    max_calls: int = MAX_CALLS,
    max_connections: int = MAX_CONNECTIONS,
    shares_port: bool = False,
) -> grpc.aio.Server:
    """A server without services or ports. A message larger than `max_message_bytes` is refused
    unread, with RESOURCE_EXHAUSTED. With certificates, only the roles in `outrider.tls.access` may
    call a method; while `tls` is `watched`, changed files apply to new handshakes and to running
    calls. `shares_port`: its port is reserved by another process of this user, which does not
    listen."""
    limits = (
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_concurrent_streams", max_streams),
        ("grpc.max_allowed_incoming_connections", max_connections),
        # Two servers on one port would share its connections at random.
        ("grpc.so_reuseport", int(shares_port)),
    )
    return grpc.aio.server(
        interceptors=(_Interceptor(CallAuthorizer(tls)),),
        options=(*_OPTIONS, *limits),
        maximum_concurrent_rpcs=max_calls,
    )


def bind(server: grpc.aio.Server, host: str, port: int, tls: Tls = PLAINTEXT) -> int:
    """Listen on host:port (0: any) and return the port, of `unix:PATH` 1. Raises ConfigError if it
    is taken, and without certificates if others than this machine could connect."""
    tls.config.check_reach(host, "listen on")
    address = host if host.startswith("unix:") else f"{host}:{port}"
    try:
        bound = _add_port(server, address, tls)
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {address}; is the port taken?") from error
    if bound == 0:
        raise ConfigError(f"cannot listen on {address}; is the port taken?")
    return bound


def _add_port(server: grpc.aio.Server, address: str, tls: Tls) -> int:
    if tls.current is None:
        return server.add_insecure_port(address)
    # Every handshake asks; clients have to show a certificate that leads to our CA.
    credentials = grpc.dynamic_ssl_server_credentials(
        _configuration(tls),
        _fetcher(tls),  # type: ignore[arg-type]
        require_client_authentication=True,
    )
    return server.add_secure_port(address, credentials)


def _configuration(tls: Tls) -> grpc.ServerCertificateConfiguration:
    material = tls.current
    assert material is not None, "there is no way back to plaintext"
    pair = (material.private_key, material.certificate)
    return grpc.ssl_server_certificate_configuration([pair], material.ca)


def _fetcher(tls: Tls) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
    """Called in a thread of gRPC before each handshake; None: nothing changed."""
    used = tls.generation

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        if tls.generation == used:
            return None
        used = tls.generation
        return _configuration(tls)

    return fetch


async def incoming(requests: AsyncIterable[T]) -> AsyncIterator[T]:
    """The messages of a request stream. Raises MalformedFrameError for one that does not parse."""
    try:
        async for request in requests:
            yield request
    except DecodeError as error:
        raise MalformedFrameError(f"a message does not parse: {error}") from error


async def discarded(requests: AsyncIterable[T], limit_s: float = 5.0) -> None:
    """Read a peer's remaining messages for at most `limit_s` after answering with an error. If the
    stream ended at once, the peer's write would fail and hide that answer from it (grpc.aio makes
    the call an internal error)."""
    with contextlib.suppress(TimeoutError, OutriderError):
        async with asyncio.timeout(limit_s):
            async for _ in requests:
                pass


UNTRACED: Final = frozenset(
    {"/grpc.health.v1.Health/Check", "/outrider.v1.RouterService/GetRouter"}
)
"""Methods that peers call several times a second to see whether they are answered: a span for each
call would outnumber those of chats by far."""


class _Interceptor(grpc.aio.ServerInterceptor):
    """Refuses callers without permission and methods that are not served, continues the caller's
    trace and turns OutriderError into status and trailer.

    grpc.aio runs each call in a task of its own, so the context set here ends with the call and
    needs no reset, which a cancelled or abandoned stream could not do in the right context.
    """

    def __init__(self, authorizer: CallAuthorizer) -> None:
        self._authorizer = authorizer

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(details)
        if handler is None:
            return _unknown(details.method, self._authorizer)
        parent = _parent(details)
        if handler.response_streaming:
            return handler._replace(**_streaming(handler, parent, details.method, self._authorizer))
        return handler._replace(**_unary(handler, parent, details.method, self._authorizer))


def _unknown(method: str, authorizer: CallAuthorizer) -> Any:
    """A handler that refuses any call, unary or streamed, with a sentence for the caller and one in
    our log: most likely the caller is of another version."""

    async def refuse(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        why = not_served(method)
        authorizer.log_refused(method[:_MAX_METHOD_CHARS], context.peer(), UnavailableError(why))
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, why)

    return grpc.stream_stream_rpc_method_handler(refuse)


def _parent(details: grpc.HandlerCallDetails) -> TraceParent:
    metadata = dict(details.invocation_metadata or ())
    return str(metadata.get("traceparent", "")), str(metadata.get("tracestate", ""))


def _unary(
    handler: Any, parent: TraceParent, method: str, authorizer: CallAuthorizer
) -> dict[str, Any]:
    slot = "stream_unary" if handler.request_streaming else "unary_unary"
    inner = getattr(handler, slot)
    attributes = {names.RPC_SYSTEM: "grpc", names.RPC_METHOD: method.lstrip("/")}

    def traced() -> AbstractContextManager[object]:
        if method in UNTRACED:
            return contextlib.nullcontext()
        return span(method.lstrip("/"), parent=parent, **attributes)

    async def serve(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            with authorizer.call(method, context) as call:
                try:
                    with traced():
                        return await inner(request, context)
                except asyncio.CancelledError:
                    _raise_reason(call)
                    raise
        except OutriderError as error:
            await abort(context, error)

    return {slot: serve}


def _streaming(
    handler: Any, parent: TraceParent, method: str, authorizer: CallAuthorizer
) -> dict[str, Any]:
    slot = "stream_stream" if handler.request_streaming else "unary_stream"
    inner = getattr(handler, slot)

    async def serve(
        request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        otel_context.attach(extract(parent))
        try:
            with authorizer.call(method, context) as call:
                try:
                    async for message in inner(request, context):
                        yield message
                except asyncio.CancelledError:
                    _raise_reason(call)
                    raise
        except OutriderError as error:
            await abort(context, error)

    return {slot: serve}


def _raise_reason(call: Call) -> None:
    """Raise the reason for which the authorizer ended a call."""
    if call.why is not None:
        raise call.why


class HealthControl:
    """Whether a server's services serve, in the gRPC health checking protocol (grpc.health.v1).
    Starts as not serving."""

    def __init__(self, services: frozenset[str]) -> None:
        self._services = services
        self._serving = False
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def serving(self) -> bool:
        """The status that health checks get."""
        return self._serving

    def set_serving(self, serving: bool) -> None:
        """Answer SERVING or NOT_SERVING from now on, to watchers at once."""
        self._serving = serving
        self._wake()

    def close(self) -> None:
        """Not serving, and every Watch stream ends: a stopping server need not wait for them."""
        self._closed = True
        self.set_serving(False)

    def status(self, service: str) -> int:
        """The protocol's answer for one service name; the empty name is the whole server."""
        if service and service not in self._services:
            return UNKNOWN_SERVICE
        return SERVING if self._serving else NOT_SERVING

    async def changes(self, service: str) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status now and after each change, until `close`."""
        last = None
        while True:
            changed, closed, status = self._changed, self._closed, self.status(service)
            if status != last:
                last = status
                yield health_pb2.HealthCheckResponse(status=status)
            if closed:
                return
            await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class _HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    def __init__(self, control: HealthControl) -> None:
        self._control = control

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> health_pb2.HealthCheckResponse:
        status = self._control.status(request.service)
        if status == UNKNOWN_SERVICE:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        async for change in self._control.changes(request.service):
            yield change


def add_health(server: grpc.aio.Server, *service_names: str) -> HealthControl:
    """Serve grpc.health.v1 for these full service names; they start as not serving."""
    control = HealthControl(frozenset(service_names))
    health_pb2_grpc.add_HealthServicer_to_server(_HealthServicer(control), server)
    return control
