"""A session as admission control keeps it from when it is let in. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from services.router.admission.policy import QueuePriority
from services.router.session_request import SessionRequest


@dataclass(slots=True, eq=False)
class AdmittedSession:
    """A session from the time it was let in until it ends."""

    session_id: int
    """Unique among the router's live sessions."""
    request: SessionRequest
    """With the class that it was given; without its prompt from when it has a route."""
    queue_priority: QueuePriority
    reserved_tokens: int
    """Prompt, the tokens of the reply that it came with, and as many as may follow."""
    weight: float
    """Weight of its tenant in the fair queue."""
    reservation_id: int
    """Reservation of its tokens in the tenant's bucket."""
    arrived_at: float
    expires_at: float
    """When it has waited too long."""
    replica_set: Hashable = None
    """Equal for sessions that the same replicas can serve (`FleetView.replica_set`), as far as was
    known when it came."""
    is_waiting: bool = False
    is_waking: bool = False
    """Whether it came while no replica of its model took sessions, and waits for one to start."""
    is_placed: bool = False
    """Whether it has, or had, a replica."""

    @property
    def cost(self) -> float:
        """Amount charged to its flow in the fair queue when it gets a replica."""
        return self.reserved_tokens / self.weight

    @property
    def flow(self) -> str:
        """Key of its flow in the fair queue."""
        return self.request.flow

    @property
    def rank(self) -> float:
        """Its place in its flow: the first deadline first."""
        return self.expires_at

    def used_tokens(self, upto: int) -> int:
        """Tokens computed for it when its reply has `upto` tokens; 0 before it has a replica."""
        num_new = max(0, upto - self.request.num_committed)
        return self.request.prefill_tokens + num_new if self.is_placed else 0
