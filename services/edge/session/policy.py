"""What a chat session is set up with, where it stands, and the times it keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from outrider.session_types import Timings
from services.edge.session.actions import Action, Commit, Provisional
from services.edge.session.reopening import ReopenPolicy
from services.edge.session.reply import ReplyPolicy


class State(Enum):
    """Where a chat is."""

    AWAITING = auto()
    """The stream is open, the request has not come."""
    TOKENIZING = auto()
    OPENING = auto()
    """The region was asked; drafts may already be on their way."""
    STREAMING = auto()
    REOPENING = auto()
    """The way to the region broke; it is asked again in a moment."""
    CLOSED = auto()


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
    reopen: ReopenPolicy = field(default_factory=ReopenPolicy)


@dataclass(slots=True)
class Milestones:
    """When what happened, on the clock of `now`; what the shell's metrics are made of."""

    asked: float | None = None
    opened: float | None = None
    """When the region was asked."""
    provisional: float | None = None
    committed: float | None = None
    """The first of each."""

    def note(self, actions: Iterable[Action], num_resumed: int, now: float) -> None:
        """What is about to be done; the first `num_resumed` tokens are of earlier runs."""
        for action in actions:
            if isinstance(action, Provisional) and self.provisional is None:
                self.provisional = now
            is_new = isinstance(action, Commit) and action.upto > num_resumed
            if is_new and self.committed is None:
                self.committed = now

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
