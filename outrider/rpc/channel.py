"""Client channels, and the trace context of a call.

No client interceptor is used on purpose: grpc.aio wraps an intercepted stream in a queue of its own
and loses cancellations on the way. A call that should carry the trace passes
`metadata=trace_metadata()`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from outrider.errors import UnavailableError
from outrider.rpc.server import MAX_MESSAGE_BYTES
from outrider.telemetry.tracing import current_context
from outrider.tls import PLAINTEXT, Role, Tls

_MAX_HANDSHAKES: Final = 3
"""A server is distrusted when this many handshakes in a row fail."""
_HANDSHAKE_PAUSE_S: Final = 0.3
"""Time between two of them: the server's own files may change a moment after the CA bundle."""

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
    # Not a pause, despite its name: the least time an attempt may take. Below two round trips, no
    # attempt of a client far away succeeds before the backoff has grown to that.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),
    # Every channel has a connection of its own: a stream's fate is not tied to another client's.
    ("grpc.use_local_subchannel_pool", 1),
)


def make_channel(
    address: str,
    *,
    tls: Tls = PLAINTEXT,
    role: Role | None = None,
    region: str = "",
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> grpc.aio.Channel:
    """A channel to `host:port`, or `unix:PATH`. It connects on first use and again after every
    loss, always with the certificate that was current when it was made.

    With certificates the server's must be of `role`, and of `region` if one is given. Without,
    raises ConfigError for an address beyond this machine.
    """
    options = (
        *_OPTIONS,
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
    )
    material = tls.current
    if material is None:
        tls.config.check_reach(address if address.startswith("unix:") else _host(address), "call")
        return grpc.aio.insecure_channel(address, options=options)
    assert role is not None, "with certificates a channel is made for a role"
    credentials = grpc.ssl_channel_credentials(
        material.ca, material.private_key, material.certificate
    )
    # Addresses are those of pods, which are not in certificates. A certificate has the role and the
    # region: the handshake fails unless they are the expected ones.
    expected = ("grpc.ssl_target_name_override", tls.server_name(role, region))
    return grpc.aio.secure_channel(address, credentials, options=(*options, expected))


def end_call(call: Any) -> None:
    """End a call of grpc.aio, including one that it considers done although gRPC's core does not.

    That happens when a write fails because the peer has ended the stream: `cancel` then does
    nothing, while the core waits for the messages before the end to be read. Call, messages and the
    task that waits for the status would stay for as long as this process lives, whatever becomes of
    the channel (grpc/grpc issues 41875 and 42125).
    """
    if not call.cancel():
        call._cython_call.cancel("Ended by the application.")


async def until_distrusted(address: str, *, tls: Tls, role: Role, region: str = "") -> NoReturn:
    """Raises UnavailableError once the server at `address` has no certificate that the CA bundle
    verifies: checked after each change of the bundle, on a connection of its own. That a server is
    silent is not noticed here."""
    checked = tls.ca_generation
    while True:
        checked = await tls.ca_changes(checked)
        for _ in range(_MAX_HANDSHAKES):
            async with make_channel(address, tls=tls, role=role, region=region) as channel:
                if await _connects(channel):
                    break
            await asyncio.sleep(_HANDSHAKE_PAUSE_S)
        else:
            raise UnavailableError("it has no certificate that the CA bundle verifies now")


async def _connects(channel: grpc.aio.Channel) -> bool:
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            return False
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)
    return True


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """The current span as call metadata; empty outside a trace."""
    traceparent, tracestate = current_context()
    if not traceparent:
        return ()
    if not tracestate:
        return (("traceparent", traceparent),)
    return (("traceparent", traceparent), ("tracestate", tracestate))
