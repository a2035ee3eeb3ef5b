"""What placement is asked and what it answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from services.router.prefixes.prompt import Prompt

RETRY_DELAY_MS = 250

LOW, MEDIUM, HIGH = 1, 2, 3
"""Priorities; the numbers are the wire's."""


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """What the operator decides."""

    near_ms: float
    """Replicas whose cost lies this close to the best one's share the load."""
    max_queued: int
    """Sessions that may wait for a place on one replica."""
    report_ms: float = 50.0
    """A replica whose load changes reports it at least so often."""
    work_weight: float = 0.5
    """What a millisecond of a replica's work costs those who come later, in milliseconds of this
    session's wait, where the region of the least wait has no queues. 0: only its own wait counts,
    and idle replicas compute what others hold."""
    busy_work_weight: float = 4.0
    """The same where every replica of that region has prompts waiting; in between by their
    share."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """KV of the prompt's beginning that any replica could load instead of computing it."""

    num_tokens: int = 0
    load_ms: float = 0.0


NO_TRANSFER = Transfer()
"""Of a mesh without a KV store."""


@dataclass(frozen=True, slots=True)
class Request:
    """What placement needs to know of a session."""

    model: str
    vocabulary_digest: bytes
    prompt_tokens: int
    residency: tuple[str, ...] = ()
    """Regions that may hold the prompt; empty: any."""
    exclude: frozenset[str] = field(default_factory=frozenset)
    """Replicas already tried for this session."""
    priority: int = MEDIUM
    prompt: Prompt | None = None
    """Its ids, to be found cached; None: they are not known, and taken to be cached nowhere."""
    transfer: Transfer = NO_TRANSFER


class Wait(NamedTuple):
    """The predicted time to the first token on one replica, term by term. Sessions of lower
    classes are not waited for: replicas serve higher ones first."""

    rtt_ms: float
    place_ms: float
    """From then on until enough running sessions have ended, on a replica whose places are all
    taken."""
    queue_ms: float
    """Until the prompts ahead are prefilled."""
    transfer_ms: float
    """Loading the KV that is cheaper to load than to compute."""
    prefill_ms: float
    """What is neither cached nor loaded of the prompt, calls shared with running sessions."""

    @property
    def total_ms(self) -> float:
        """The sum."""
        return self.rtt_ms + self.place_ms + self.queue_ms + self.transfer_ms + self.prefill_ms


class Standing(NamedTuple):
    """How a replica stands before a LOW session, which waits for all others."""

    wait: Wait
    """That of a session without a prompt."""
    num_sessions: int
    """Of every router: those reported, and those placed by this one since."""


class Candidate(NamedTuple):
    """A replica that could have had the session."""

    replica: str
    region: str
    wait: Wait
    cached_tokens: int
    """Prompt tokens whose KV it has, or is expected to have by then."""


class Decision(NamedTuple):
    """The chosen replica and the reason."""

    chosen: Candidate
    runner_up: Candidate | None
    """The best of the others by cost; None if there was no other."""
    considered: tuple[tuple[str, float], ...]
    """The best replicas with their predicted waits in ms, best by cost first."""
    num_able: int
    """Replicas that met the constraints."""
    least_backlog_ms: float = 0.0
    """The least time that others' prompts and replies take on any of them, for the class."""

    @property
    def replica(self) -> str:
        """Where it goes."""
        return self.chosen.replica

    @property
    def region(self) -> str:
        """The region of that."""
        return self.chosen.region

    @property
    def wait(self) -> Wait:
        """The wait predicted there."""
        return self.chosen.wait

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens cached there."""
        return self.chosen.cached_tokens

    @property
    def margin_ms(self) -> float:
        """How much longer the runner-up's wait is predicted to be, 0 without one; negative where
        it has less of the prompt, or chance chose between near-equals."""
        return self.runner_up.wait.total_ms - self.wait.total_ms if self.runner_up else 0.0
