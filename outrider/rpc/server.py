"""Servers, and the interceptor that continues the caller's trace."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from opentelemetry import context as otel_context

from outrider.errors import ConfigError, MalformedFrameError, OutriderError
from outrider.rpc.errors import abort
from outrider.telemetry import names
from outrider.telemetry.tracing import TraceParent, extract, span

T = TypeVar("T")

MAX_MESSAGE_BYTES = 4 * 1024 * 1024

_OPTIONS = (
    # A client that died without a word is noticed within 10 seconds; its sessions end with it, and
    # only then may their request ids run again.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Without it the clients' keepalive pings on idle streams end in GOAWAY "too many pings".
    ("grpc.http2.min_ping_interval_without_data_ms", 2_500),
    ("grpc.http2.max_pings_without_data", 0),
    # Two servers on one port would share its connections at random.
    ("grpc.so_reuseport", 0),
)


def make_server(*, max_message_bytes: int = MAX_MESSAGE_BYTES) -> grpc.aio.Server:
    """A server without services or ports. A larger message gets RESOURCE_EXHAUSTED, unread."""
    sizes = (
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
    )
    return grpc.aio.server(interceptors=(_Interceptor(),), options=(*_OPTIONS, *sizes))


def bind(server: grpc.aio.Server, host: str, port: int) -> int:
    """Listen on host:port (0: any) and return the port. Raises ConfigError if it is taken."""
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {host}:{port}; is the port taken?") from error
    if bound == 0:
        raise ConfigError(f"cannot listen on {host}:{port}; is the port taken?")
    return bound


async def incoming(requests: AsyncIterable[T]) -> AsyncIterator[T]:
    """The messages of a request stream. Raises MalformedFrameError for one that does not parse."""
    try:
        async for request in requests:
            yield request
    except DecodeError as error:
        raise MalformedFrameError(f"a message does not parse: {error}") from error


class _Interceptor(grpc.aio.ServerInterceptor):
    """Continues the caller's trace and turns OutriderError into status and trailer.

    grpc.aio runs each call in a task of its own, so the context set here ends with the call and
    needs no reset, which a cancelled or abandoned stream could not do in the right context.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        parent = _parent(details)
        if handler.response_streaming:
            return handler._replace(**_streaming(handler, parent))
        return handler._replace(**_unary(handler, parent, details.method))


def _parent(details: grpc.HandlerCallDetails) -> TraceParent:
    metadata = dict(details.invocation_metadata or ())
    return str(metadata.get("traceparent", "")), str(metadata.get("tracestate", ""))


def _unary(handler: Any, parent: TraceParent, method: str) -> dict[str, Any]:
    slot = "stream_unary" if handler.request_streaming else "unary_unary"
    inner = getattr(handler, slot)
    attributes = {names.RPC_SYSTEM: "grpc", names.RPC_METHOD: method.lstrip("/")}

    async def serve(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            with span(method.lstrip("/"), parent=parent, **attributes):
                return await inner(request, context)
        except OutriderError as error:
            await abort(context, error)

    return {slot: serve}


def _streaming(handler: Any, parent: TraceParent) -> dict[str, Any]:
    slot = "stream_stream" if handler.request_streaming else "unary_stream"
    inner = getattr(handler, slot)

    async def serve(
        request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        otel_context.attach(extract(parent))
        try:
            async for message in inner(request, context):
                yield message
        except OutriderError as error:
            await abort(context, error)

    return {slot: serve}
