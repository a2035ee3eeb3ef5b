"""The settings and results of placement. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from outrider.bounds import NonNegativeFloat, NonNegativeInt

RETRY_DELAY_MS = 250


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """How replicas are compared (`[router.placement]`)."""

    near_ms: NonNegativeFloat = 5.0
    """Replicas whose cost is within this many milliseconds of the least share the load."""
    max_queued: NonNegativeInt = 128
    """Sessions that may wait for a place on one replica; with all replicas there, OVERLOADED."""
    work_weight: NonNegativeFloat = 0.5
    """Cost of a millisecond of a replica's work, which delays later sessions, in milliseconds of
    this session's wait, while no replica of the region with the least wait has prompts waiting. 0:
    only the session's own wait counts."""
    busy_work_weight: NonNegativeFloat = 4.0
    """The same while all replicas of that region have prompts waiting; between the two in
    proportion to their share."""


class PredictedWait(NamedTuple):
    """The predicted time to first token on one replica, term by term. Sessions of lower classes
    do not count: replicas serve higher classes first."""

    rtt_ms: float
    slot_ms: float
    """Until a slot is free, after the prompts ahead are computed; 0 if one is free now."""
    memory_ms: float
    """Until there is KV memory for its prompt and its expected reply, after slot and queue; 0 if
    there is now, or if the replica does not report its memory."""
    queue_ms: float
    """Until the prompts ahead are computed."""
    transfer_ms: float
    """Time until the part of the prompt that another replica has is ready, moved from its end while
    it is computed from its beginning; 0 if nothing is moved or the speed of moving is unknown."""
    prefill_ms: float
    """Computing what no other replica has of the prompt and is not cached, in calls shared with
    running sessions."""
    idle_prefill_ms: float = 0.0
    """Computing the uncached part, moved tokens included, on a replica without other sessions; not
    part of the sum."""
    kv_tokens: int = 0
    """KV memory that it is expected to take, in tokens; 0: unknown. Not part of the sum."""

    @property
    def total_ms(self) -> float:
        """The sum."""
        waiting_ms = self.slot_ms + self.memory_ms + self.queue_ms
        return self.rtt_ms + waiting_ms + self.transfer_ms + self.prefill_ms


class ReplicaStatus(NamedTuple):
    """Wait and sessions of a replica as a LOW session, which is served last, would find them."""

    wait: PredictedWait
    """Predicted wait of a session without a prompt."""
    num_sessions: int
    """Sessions of all routers: those reported, and those that this router has placed since."""


class Candidate(NamedTuple):
    """A replica that could have had the session."""

    replica: str
    region: str
    wait: PredictedWait
    cached_tokens: int
    """Prompt tokens whose KV it has, or is expected to have when the session arrives."""
    identity: bytes = b""
    """Model identity (outrider.model_identity); empty: unknown."""


class KvSource(NamedTuple):
    """A replica that has more of a session's beginning than the one it is sent to."""

    replica: str
    num_tokens: int


class Decision(NamedTuple):
    """The chosen replica and the reason."""

    chosen: Candidate
    runner_up: Candidate | None
    """The second-best replica by cost; None if no other met the constraints."""
    considered: tuple[tuple[str, float], ...]
    """The best replicas with their predicted waits in ms, best by cost first."""
    num_able: int
    """Replicas that met the constraints."""
    least_backlog_ms: float = 0.0
    """Least time on any of them until the prompts ahead are computed and a place is free, for the
    session's class."""
    kv_source: KvSource | None = None
    """Replica from which the chosen one may fetch KV; None: no other has more."""

    @property
    def replica(self) -> str:
        """The chosen replica."""
        return self.chosen.replica

    @property
    def region(self) -> str:
        """Region of the chosen replica."""
        return self.chosen.region

    @property
    def wait(self) -> PredictedWait:
        """The wait predicted there."""
        return self.chosen.wait

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens cached there."""
        return self.chosen.cached_tokens

    @property
    def margin_ms(self) -> float:
        """How much longer the runner-up's predicted wait is; 0 without one. Negative if it is
        shorter, but less of the prompt is cached there, or chance chose between near-equals."""
        return self.runner_up.wait.total_ms - self.wait.total_ms if self.runner_up else 0.0
