"""What placement needs to know of an open, read from its frame."""

from __future__ import annotations

from outrider.errors import DeadlineError, EmptyPromptError, OverloadedError
from outrider.v1 import router_pb2
from services.router.placement.place import RETRY_DELAY_MS, Request


def request_of(open_request: router_pb2.RouteRequest) -> Request:
    """The constraints of a session whose prompt is ids. Raises EmptyPromptError."""
    frame = open_request.frame.open
    prompt_tokens = frame.ids.prefix_tokens + frame.ids.tail.count
    if not prompt_tokens:
        raise EmptyPromptError("The session has no prompt: send messages or token ids.")
    return Request(
        model=frame.model,
        vocabulary_digest=frame.vocabulary_digest,
        # Tokens to resume after are prefilled like the prompt.
        prompt_tokens=prompt_tokens + frame.resume.count,
        residency=tuple(frame.residency),
    )


def deadline_at(open_request: router_pb2.RouteRequest, now: float) -> float | None:
    """When the session has to be over, on this router's clock; None without a deadline."""
    left_ms = open_request.frame.open.deadline_ms
    return now + left_ms / 1000.0 if left_ms else None


def renew_deadline(open_request: router_pb2.RouteRequest, at: float | None, now: float) -> None:
    """State the time that is left, which is less than on arrival. Raises DeadlineError."""
    if at is None:
        return
    left_ms = round((at - now) * 1000.0)
    if left_ms <= 0:
        raise DeadlineError("The deadline passed before a replica could be found.")
    open_request.frame.open.deadline_ms = left_ms


def full(replica: str) -> OverloadedError:
    """Why an open could not even be queued for a replica."""
    return OverloadedError(
        f"The buffer towards replica {replica} is full: try again later.",
        retry_delay_ms=RETRY_DELAY_MS,
    )
