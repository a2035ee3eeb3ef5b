"""What a chat session is set up with, and the times it keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.edge.session.inputs import Timings
from services.edge.session.reply import ReplyPolicy


@dataclass(frozen=True, slots=True)
class SessionPolicy:
    """Limits of one chat, and how it drafts and shows."""

    vocabulary_digest: bytes
    max_context_tokens: int
    """A prompt has to leave room for at least one token of reply."""
    request_timeout_s: float = 10.0
    """How long an open stream may wait with its request."""
    deadline_grace_s: float = 1.0
    """How long after its deadline a chat waits for the region to end it."""
    reply: ReplyPolicy = field(default_factory=ReplyPolicy)


@dataclass(slots=True)
class Milestones:
    """When what happened, on the clock of `now`; what the shell's metrics are made of."""

    asked: float | None = None
    opened: float | None = None
    """When the region was asked."""
    provisional: float | None = None
    committed: float | None = None
    """The first of each."""

    def timings(self, now: float) -> Timings:
        """Milliseconds since the request came; 0 for what has not happened."""
        start = now if self.asked is None else self.asked
        return Timings(
            queue_ms=_ms(start, self.opened),
            ttft_ms=_ms(start, self.committed),
            total_ms=_ms(start, now),
        )


def _ms(start: float, end: float | None) -> float:
    return 0.0 if end is None else (end - start) * 1000
