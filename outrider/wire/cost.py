"""What a chat costs, on the wire."""

from __future__ import annotations

from outrider.cost import Cost
from outrider.errors import MalformedFrameError
from outrider.v1 import common_pb2


def put(usage: common_pb2.Usage, cost: Cost | None) -> None:
    """Say what the chat costs, in place of what is said there; None: say nothing."""
    if cost is None:
        if usage.HasField("cost"):  # clearing would set a `usage` that is not there
            usage.ClearField("cost")
    else:
        usage.cost.amount_nanos = cost.amount_nanos
        usage.cost.currency = cost.currency


def from_proto(usage: common_pb2.Usage) -> Cost | None:
    """What a peer says that a chat costs; None where it does not. Raises MalformedFrameError."""
    if not usage.HasField("cost"):
        return None
    try:
        return Cost(usage.cost.amount_nanos, usage.cost.currency)
    except ValueError as error:
        raise MalformedFrameError(f"the peer says that the chat costs {error}") from error
