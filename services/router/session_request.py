"""The request of a session, as relay, admission and placement use it. Pure.

`frames.read_request` of the relay makes it from the session's open; later changes (class, token ids
instead of messages, committed tokens) replace single fields.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.model_identity import same_model
from outrider.session.runs import UNKNOWN_RUN
from outrider.session.types import Priority
from services.router.prefix_index.prompt import HashedPrompt


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """One session's request for a reply."""

    model: str
    vocabulary_digest: bytes = b""
    """Digest of the vocabulary of the prompt's token ids; empty while the prompt is messages."""
    prompt_tokens: int = 0
    """Tokens of the prompt; 0 while it is messages, or is yet to come."""
    num_committed: int = 0
    """Number of final tokens of its reply: those of earlier runs of the chat, which its edge sends,
    and those that a lost replica has committed. The next replica prefills them with the prompt."""
    identity: bytes | None = None
    """Model identity that computed the committed tokens: only a replica of the same identity may
    continue them. Empty: unknown, which no replica matches. None: nothing is committed."""
    allows_inexact: bool = False
    """Whether a replica of another identity may have it where none of this one can."""
    residency: tuple[str, ...] = ()
    """Regions that may hold the prompt; empty: any."""
    priority: Priority = Priority.MEDIUM
    """The class that it asks for, and once it is admitted the class that it has."""
    max_tokens: int = 0
    """Longest reply that it may have."""
    tenant: str = ""
    flow: str = ""
    """Key of its flow in fair queues (`Requester.of`)."""
    address_hash: bytes = b""
    """Hash of the address prefix of a client without a key; empty: the client has a key."""
    begun_ahead: bool = False
    """Its committed tokens were computed in the background, before it was admitted."""
    is_proven: bool = False
    """It lost its router after the replica there had committed tokens of it: that replica was not
    lost because of its prompt."""
    is_background: bool = False
    """Computed before anybody asks for it: it is placed at once or refused, never queued, and
    counts for nobody."""
    deadline_at: float | None = None
    """When it has to be over, by this router's clock; None: it has no deadline."""
    run: int = UNKNOWN_RUN
    """Which run of the request it is (outrider.session.runs)."""
    chat_digest: bytes = b""
    """Equal for runs of the same request of the same client; empty: unknown."""
    call_key: int = 0
    """Key of the session in engine calls (`outrider.engine_calls.request_key`)."""
    prompt: HashedPrompt | None = None
    """Hashed token ids, to look up in the prefix index; None: not available, so the prompt counts
    as cached nowhere."""

    @property
    def prefill_tokens(self) -> int:
        """Tokens that a replica without a cached prefix computes before it continues the reply."""
        return self.prompt_tokens + self.num_committed

    @property
    def is_resumed(self) -> bool:
        """Whether it claims to have been admitted before and to have lost its replica or router. A
        client may claim this for any chat."""
        return self.num_committed > 0 and not self.begun_ahead

    def allows_region(self, region: str) -> bool:
        """Whether its prompt may be held there."""
        return not self.residency or region in self.residency

    def may_continue_at(self, identity: bytes) -> bool:
        """Whether a replica that computes this may have it with the tokens that it has."""
        is_free = self.identity is None or self.allows_inexact
        return is_free or same_model(self.identity or b"", identity)
