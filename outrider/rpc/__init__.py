"""gRPC as Outrider uses it: servers, channels, errors as trailers, health, bounded outbound queues,
and the loop that reconnects."""

from outrider.rpc.channel import end_call, make_channel, trace_metadata, until_distrusted
from outrider.rpc.errors import abort, from_rpc_error, status_code
from outrider.rpc.frames import outgoing, received
from outrider.rpc.outbox import Outbox
from outrider.rpc.reconnect import LOSSES, Reconnector, loss_reason, loss_text
from outrider.rpc.server import (
    HealthControl,
    add_health,
    bind,
    discarded,
    incoming,
    make_server,
)

__all__ = [
    "LOSSES",
    "HealthControl",
    "Outbox",
    "Reconnector",
    "abort",
    "add_health",
    "bind",
    "discarded",
    "end_call",
    "from_rpc_error",
    "incoming",
    "loss_reason",
    "loss_text",
    "make_channel",
    "make_server",
    "outgoing",
    "received",
    "status_code",
    "trace_metadata",
    "until_distrusted",
]
