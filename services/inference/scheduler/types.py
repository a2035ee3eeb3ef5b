"""Input and output types of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from outrider.errors import OutriderError
from outrider.sampling.constraint import Constraint
from outrider.sampling.params import SamplingParams
from outrider.session.region import Commit, Draft
from outrider.session.types import FinishReason, Priority, Timings, Usage


class OverloadLevel(IntEnum):
    """Work that the replica sheds under load; each level includes those before it. Admitted
    sessions are never dropped. The wire protocol uses the same numbers."""

    NORMAL = 0
    NO_DRAFTS = 1
    """Drafts are verified only in rows that cost nothing."""
    SMALL_CHUNKS = 2
    """Prompts get smaller chunks: replies that have begun go first."""
    QUEUE_LOW = 3
    """LOW sessions stay in the queue while others are there."""
    REFUSE = 4
    """New sessions are refused with a retry delay."""


class KvHolder(NamedTuple):
    """Another replica that has KV of a session's beginning, as named by a router."""

    replica: str
    region: str
    address: str
    num_tokens: int
    """Leading tokens of prompt and committed reply."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A session to run. Ids are validated against the vocabulary by the scheduler."""

    session_id: int
    """Engine session id: unique among the live sessions of the replica."""
    prompt: tuple[int, ...]
    sampling: SamplingParams
    priority: Priority = Priority.MEDIUM
    deadline: float | None = None
    """Seconds, on the clock of `now`."""
    resume: tuple[int, ...] = ()
    """Reply tokens committed before; generation continues after them."""
    epoch: int = 0
    drafts: Draft | None = None
    edge_drafts: bool = True
    """Whether drafts from the edge are used."""
    region_drafts: bool = True
    """Whether the region drafts for itself."""
    cache_salt: bytes = b""
    """The trust group: equal salts share cached prefixes and drafting statistics."""
    takes_inexact_kv: bool = False
    """Whether KV that was rounded on its way here may be used: its tenant and this replica's
    operator allow it. `cache_salt` is then none of an exact session."""
    static_salts: tuple[bytes, ...] = ()
    """Salts of the static prefixes that the session may use."""
    warms_up: bool = False
    """Computed before the replica serves: no objective holds for it."""
    group_lasts: bool = False
    """Whether the group's name is the same after a restart of its edges: its statistics may then be
    kept."""
    shared_prefix_tokens: int = 0
    """Number of leading tokens of the prompt that other replicas want too."""
    prediction: tuple[int, ...] = ()
    """Expected text of the reply: the region copies drafts from it."""
    kv_holder: KvHolder | None = None
    """Replica to ask for KV that is not cached here; None: none."""
    request_key: int = 0
    """Identifies the request in records of engine calls (outrider.engine_calls); 0: not
    recorded."""
    goes_alone: bool = False
    """A replica was lost with it: it is alone in its calls until its first token."""
    is_background: bool = False
    """Nobody has asked for it yet: it is in calls of its own kind alone, gives its place and its KV
    to every other session, and is refused rather than kept waiting."""
    constraint: Constraint | None = field(default=None, compare=False)
    """Constraint of the sampling's grammar, at the reply's beginning; the session owns it."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The session was taken in and will be served."""

    session_id: int
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose KV is cached now; Usage has the number finally reused."""


class Begun(NamedTuple):
    """The session is in an engine call for the first time."""

    session_id: int


class SessionCommit(NamedTuple):
    """Tokens of a session are final now."""

    session_id: int
    commit: Commit
    interval_ms: float
    """Between the session's commits, smoothed, without what drafts of the edge added."""
    row_ms: float
    """Time that one more row adds to a call."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The session ended without an error: complete, cancelled or at its deadline."""

    session_id: int
    reason: FinishReason
    upto: int
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class Failed:
    """The session ended with an error; its KV is freed."""

    session_id: int
    error: OutriderError


Event: TypeAlias = Opened | Begun | SessionCommit | Finished | Failed


@dataclass(frozen=True, slots=True)
class ClassLoad:
    """The sessions of one priority class in a Load."""

    sessions: int = 0
    """Running and queued."""
    queued_prompt_tokens: int = 0
    kv_blocks: int = 0
    """Blocks that they are expected to have at the most, without those that they found others to
    have."""


class KvHits(NamedTuple):
    """Prompt tokens of all sessions that have ended, and where their KV came from."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the session did not compute itself."""
    loaded_tokens: tuple[tuple[str, int], ...] = ()
    """Part of these: loaded from elsewhere, by the name of the KV tier."""

    def tiers(self) -> dict[str, int]:
        """Prompt tokens by where their KV came from: the pool ("device"), a tier that blocks were
        loaded from, or the session ("computed"). Loaded ones count as soon as they are used, the
        others when their session ends: until then "device" does not include them."""
        loaded = dict(self.loaded_tokens)
        return {
            "device": self.cached_tokens - sum(loaded.values()),
            **loaded,
            "computed": self.prompt_tokens - self.cached_tokens,
        }


NO_HITS = KvHits()


@dataclass(frozen=True, slots=True)
class SchedulerLoad:
    """Load of a scheduler, as reported to routers."""

    running_sessions: int
    queued_sessions: int
    queued_prompt_tokens: int
    kv_blocks_total: int
    kv_blocks_free: int
    fixed_ms: float
    row_ms: float
    max_sessions: int
    max_queue: int
    """Sessions that may wait beside those that run."""
    is_cost_guessed: bool = False
    """Whether too few calls were timed for `fixed_ms` and `row_ms` (CostModel.is_guess)."""
    paused_sessions: int = 0
    """In the middle of a reply, taken out of the calls; their KV is kept."""
    overload_level: int = 0
    """An OverloadLevel."""
    low: ClassLoad = ClassLoad()
    """LOW sessions: MEDIUM and HIGH ones are served before them."""
    medium: ClassLoad = ClassLoad()
    service_ms: float = 0.0
    """Mean service time: from a session's admission to its end; 0: none has ended yet."""
    kv_blocks_owed: int = 0
    """Blocks that the sessions are expected to have at the most, beside those that they have."""
    reply_tokens: int = 0
    """Mean length of the replies that ended; 0: none has yet."""
    kv_hits: KvHits = NO_HITS
