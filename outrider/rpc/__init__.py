"""gRPC as Outrider uses it: servers, channels, errors as trailers, health, bounded outboxes."""

from outrider.rpc.channel import make_channel, trace_metadata, until_distrusted
from outrider.rpc.errors import abort, from_rpc_error, status_code
from outrider.rpc.health import HealthControl, add_health
from outrider.rpc.outbox import Outbox
from outrider.rpc.server import bind, incoming, make_server

__all__ = [
    "HealthControl",
    "Outbox",
    "abort",
    "add_health",
    "bind",
    "from_rpc_error",
    "incoming",
    "make_channel",
    "make_server",
    "status_code",
    "trace_metadata",
    "until_distrusted",
]
