"""One session before the gate. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from services.router.admission.policy import Lane, Priority
from services.router.placement.place import Request


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
    priority: Priority | None = None
    """The class it asks for; None: none in particular."""
    deadline_at: float | None = None
    """When it has to be over."""
    has_started: bool = False
    """It has tokens of its reply from elsewhere."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A session that was let in, until it ends."""

    session: int
    request: Request
    tenant: str
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
    is_waiting: bool = False

    @property
    def pool(self) -> Hashable:
        """Equal for sessions that the same replicas can serve."""
        request = self.request
        return request.model, request.vocabulary_digest, request.residency, request.exclude
