"""A session as admission control knows it: when it asks to be let in, and once it was. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from outrider.session.types import Priority
from services.router.admission.policy import QueuePriority
from services.router.placement.types import PlacementRequest


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A session that asks to be let in."""

    session_id: int
    """Unique among the router's live sessions."""
    request: PlacementRequest
    """What placement needs to know of it."""
    max_tokens: int
    """Longest reply it may have."""
    tenant: str = ""
    address_hash: bytes = b""
    """Hash of the address prefix of a client without a key; empty: the client has a key."""
    cache_salt: bytes = b""
    """Names its trust group."""
    priority: Priority | None = None
    """The class it asks for; None: it asks for none."""
    deadline_at: float | None = None
    """When it has to be over."""
    is_resumed: bool = False
    """It says that it was let in before, and lost its replica or router. A client may say so of any
    chat."""
    num_resumed_tokens: int = 0
    """Tokens of its reply that were committed before; `request.prompt_tokens` includes them."""
    chat_digest: bytes = b""
    """Equal for runs of the same request of the same client; empty: unknown."""

    @property
    def flow(self) -> str:
        """Key of its flow in the fair queue: its tenant, without one its address prefix or trust
        group. No tenant's name begins with a NUL."""
        return self.tenant or f"\0{(self.address_hash or self.cache_salt).hex()}"


@dataclass(slots=True, eq=False)
class AdmittedSession:
    """A session from the time it was let in until it ends."""

    session_id: int
    request: PlacementRequest
    """Without its prompt from when it has a route."""
    tenant: str
    flow: str
    """As in AdmissionRequest."""
    address_hash: bytes
    """As in AdmissionRequest."""
    priority: Priority
    queue_priority: QueuePriority
    reserved_tokens: int
    """Prompt, the tokens of the reply that it came with, and as many as may follow."""
    weight: float
    """Of its tenant in the fair queue."""
    reservation_id: int
    """Of its tokens in the tenant's bucket."""
    arrived_at: float
    deadline_at: float | None
    """When it has to be over."""
    expires_at: float
    """When it has waited too long."""
    num_resumed_tokens: int = 0
    """As in AdmissionRequest."""
    chat_digest: bytes = b""
    """As in AdmissionRequest."""
    replica_set: Hashable = None
    """Equal for sessions that the same replicas can serve (`FleetView.replica_set`), as far as was
    known when it came."""
    is_waiting: bool = False
    is_placed: bool = False
    """Whether it has, or had, a replica."""

    @property
    def cost(self) -> float:
        """What its flow is charged in the fair queue when it gets a replica."""
        return self.reserved_tokens / self.weight

    def used_tokens(self, upto: int) -> int:
        """Tokens computed for it when its reply has `upto` tokens; 0 before it has a replica."""
        num_new = max(0, upto - self.num_resumed_tokens)
        return self.request.prompt_tokens + num_new if self.is_placed else 0

    @property
    def prompt_tokens(self) -> int:
        """Those of the chat's own prompt, without the resumed part of the reply."""
        return self.request.prompt_tokens - self.num_resumed_tokens
