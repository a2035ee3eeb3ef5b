"""One session before the gate. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from outrider.session_types import Priority
from services.router.admission.policy import Lane
from services.router.placement.request import Request


@dataclass(frozen=True, slots=True)
class Arrival:
    """What admission needs to know of a session."""

    session: int
    """Unique among the router's live sessions."""
    request: Request
    """What placement needs to know."""
    max_tokens: int
    """Longest reply it may have."""
    tenant: str = ""
    address: bytes = b""
    """Hash of the address prefix of a client without a key; empty: it has one."""
    group: bytes = b""
    """Names its trust group."""
    priority: Priority | None = None
    """The class it asks for; None: none in particular."""
    deadline_at: float | None = None
    """When it has to be over."""
    has_started: bool = False
    """It was let in elsewhere, and lost its replica or router."""
    num_resumed: int = 0
    """Tokens of its reply from there, which `request.prompt_tokens` includes."""
    chat: bytes = b""
    """Equal for runs of the same request of the same client; empty: it does not say."""


def share_of(arrival: Arrival) -> str:
    """Ticket.share; no tenant's name begins with a zero."""
    return arrival.tenant or f"\0{(arrival.address or arrival.group).hex()}"


@dataclass(slots=True, eq=False)
class Ticket:
    """A session that was let in, until it ends."""

    session: int
    request: Request
    tenant: str
    share: str
    """Equal for sessions that take turns of one share of the queue: those of a tenant, and of
    clients that belong to none those of an address prefix, or of a trust group."""
    address: bytes
    """As in Arrival."""
    priority: Priority
    lane: Lane
    cost_tokens: int
    """Prompt and longest reply."""
    weight: float
    """Of its tenant."""
    reservation: int
    """Number of its tokens in the tenant's bucket."""
    arrived_at: float
    deadline_at: float | None
    """When it has to be over."""
    expires_at: float
    """When it has waited too long."""
    num_resumed: int = 0
    """Tokens of its reply that it came with, which `request.prompt_tokens` includes."""
    chat: bytes = b""
    """As in Arrival."""
    is_waiting: bool = False
    is_placed: bool = False
    """Whether it has, or had, a replica."""

    def used_tokens(self, upto: int) -> int:
        """Computed for it, when its reply has `upto` tokens."""
        new = max(0, upto - self.num_resumed)
        return self.request.prompt_tokens + new if self.is_placed else 0

    @property
    def own_prompt_tokens(self) -> int:
        """What the chat was asked with."""
        return self.request.prompt_tokens - self.num_resumed

    @property
    def pool(self) -> Hashable:
        """Equal for sessions that the same replicas can serve."""
        request = self.request
        return request.model, request.vocabulary_digest, request.residency, request.exclude
