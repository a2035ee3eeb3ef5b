"""Priority, speculation, end, token counts, times and cost of a session on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from outrider.cost import Cost
from outrider.errors import InvalidRequestError, MalformedFrameError
from outrider.session_types import FinishReason, Priority, Speculation, Timings, Usage
from outrider.v1 import common_pb2

_SPECULATION: Final[Mapping[Speculation, common_pb2.Speculation.ValueType]] = {
    Speculation.ON: common_pb2.SPECULATION_ON,
    Speculation.OFF: common_pb2.SPECULATION_OFF,
    Speculation.REGION_ONLY: common_pb2.SPECULATION_REGION_ONLY,
}
_SPECULATION_OF: Final[Mapping[int, Speculation]] = {
    common_pb2.SPECULATION_UNSPECIFIED: Speculation.ON,
    **{number: speculation for speculation, number in _SPECULATION.items()},
}
_FINISH_REASON: Final[Mapping[FinishReason, common_pb2.FinishReason.ValueType]] = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: common_pb2.FINISH_REASON_CANCELLED,
    FinishReason.DEADLINE: common_pb2.FINISH_REASON_DEADLINE,
}
_FINISH_REASON_OF: Final[Mapping[int, FinishReason]] = {
    number: reason for reason, number in _FINISH_REASON.items()
}


def priority_to_proto(priority: Priority | None) -> common_pb2.Priority.ValueType:
    """The wire form; None leaves the priority to the receiver."""
    return common_pb2.Priority.ValueType(priority or common_pb2.PRIORITY_UNSPECIFIED)


def priority_from_proto(number: int) -> Priority | None:
    """None where the sender named none. Raises InvalidRequestError."""
    if number == common_pb2.PRIORITY_UNSPECIFIED:
        return None
    try:
        return Priority(number)
    except ValueError:
        raise InvalidRequestError(f"priority {number} is not known to this version") from None


def speculation_to_proto(speculation: Speculation) -> common_pb2.Speculation.ValueType:
    """The wire form."""
    return _SPECULATION[speculation]


def speculation_from_proto(number: int) -> Speculation:
    """ON where the sender named none. Raises InvalidRequestError."""
    speculation = _SPECULATION_OF.get(number)
    if speculation is None:
        raise InvalidRequestError(f"speculation {number} is not known to this version")
    return speculation


def finish_reason_to_proto(reason: FinishReason) -> common_pb2.FinishReason.ValueType:
    """The wire form."""
    return _FINISH_REASON[reason]


def finish_reason_from_proto(number: int) -> FinishReason:
    """Raises MalformedFrameError."""
    reason = _FINISH_REASON_OF.get(number)
    if reason is None:
        raise MalformedFrameError(f"the session ended for a reason that is not known, {number}")
    return reason


def usage_to_proto(usage: Usage) -> common_pb2.Usage:
    """The wire form."""
    message = common_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        draft_tokens=usage.draft_tokens,
        accepted_tokens=usage.accepted_tokens,
    )
    set_cost(message, usage.cost)
    return message


def usage_from_proto(usage: common_pb2.Usage) -> Usage:
    """Raises MalformedFrameError."""
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        draft_tokens=usage.draft_tokens,
        accepted_tokens=usage.accepted_tokens,
        cost=cost_of(usage),
    )


def set_cost(usage: common_pb2.Usage, cost: Cost | None) -> None:
    """Replace the cost in `usage`; None removes it."""
    if cost is None:
        if usage.HasField("cost"):  # clearing would set a `usage` that is not there
            usage.ClearField("cost")
    else:
        usage.cost.amount_nanos = cost.amount_nanos
        usage.cost.currency = cost.currency


def cost_of(usage: common_pb2.Usage) -> Cost | None:
    """The cost that a peer names; None where it names none. Raises MalformedFrameError."""
    if not usage.HasField("cost"):
        return None
    try:
        return Cost(usage.cost.amount_nanos, usage.cost.currency)
    except ValueError as error:
        raise MalformedFrameError(f"the peer says that the chat costs {error}") from error


def timings_to_proto(timings: Timings) -> common_pb2.Timings:
    """The wire form."""
    return common_pb2.Timings(
        queue_ms=timings.queue_ms,
        prefill_ms=timings.prefill_ms,
        ttft_ms=timings.ttft_ms,
        total_ms=timings.total_ms,
    )


def timings_from_proto(timings: common_pb2.Timings) -> Timings:
    """The times as the peer measured them."""
    return Timings(
        queue_ms=timings.queue_ms,
        prefill_ms=timings.prefill_ms,
        ttft_ms=timings.ttft_ms,
        total_ms=timings.total_ms,
    )
