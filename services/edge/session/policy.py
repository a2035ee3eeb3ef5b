"""What a chat session is set up with, and the times it keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

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
