"""Client channels, and the trace context of a call.

There is no client interceptor on purpose: grpc.aio wraps an intercepted stream in a queue of its
own and loses cancellations on the way. A call that should carry the trace passes
`metadata=trace_metadata()`.
"""

from __future__ import annotations

import grpc.aio

from outrider.rpc.server import MAX_MESSAGE_BYTES
from outrider.telemetry.tracing import current_context

_OPTIONS = (
    # A dead peer is noticed within 10 seconds, idle or not.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # The keepalive timeout is the kernel's, for a host that is gone; this one is for a process that
    # hangs, and gRPC's own is a minute.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Not a pause, whatever its name: what an attempt may take at least. Below two round trips, no
    # attempt of a client far away succeeds before the backoff has grown to that.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),
    # Every channel has a connection of its own: a stream's fate is not tied to another client's.
    ("grpc.use_local_subchannel_pool", 1),
)


def make_channel(address: str, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> grpc.aio.Channel:
    """A channel to `host:port`; it connects on first use and again after every loss."""
    sizes = (
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
    )
    return grpc.aio.insecure_channel(address, options=(*_OPTIONS, *sizes))


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """The current span as call metadata; empty outside a trace."""
    traceparent, tracestate = current_context()
    if not traceparent:
        return ()
    if not tracestate:
        return (("traceparent", traceparent),)
    return (("traceparent", traceparent), ("tracestate", tracestate))
