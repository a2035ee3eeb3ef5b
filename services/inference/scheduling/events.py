"""What goes into the scheduler and what comes out: one dataclass per thing that happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from outrider.errors import OutriderError
from outrider.sampling.params import SamplingParams
from outrider.session_types import FinishReason, Priority, Timings, Usage


@dataclass(frozen=True, slots=True)
class Drafts:
    """Guesses for the reply's tokens from number `base` on."""

    epoch: int
    base: int
    ids: tuple[int, ...]
    continues: bool = False
    """An earlier frame of the epoch began its chain."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A session to run. Ids are validated against the vocabulary by the scheduler."""

    session: int
    """The shell's number, unique among live sessions."""
    prompt: tuple[int, ...]
    sampling: SamplingParams
    priority: Priority = Priority.MEDIUM
    deadline: float | None = None
    """On the clock of `now`, seconds."""
    resume: tuple[int, ...] = ()
    """Reply tokens committed before; generation goes on after them."""
    epoch: int = 0
    drafts: Drafts | None = None
    edge_drafts: bool = True
    """Whether drafts from the edge are used."""
    region_drafts: bool = True
    """Whether the region drafts for itself."""
    cache_salt: bytes = b""
    """Whose session: cached prefixes and what drafts go by are shared among equal salts alone."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The session was taken in and will be served."""

    session: int
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose KV is there now; Usage has what was reused in the end."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens [base, base + accepted) are the edge's drafts of `epoch`; `ids` follow them."""

    session: int
    epoch: int
    base: int
    accepted: int
    ids: tuple[int, ...]
    commit_interval_ms: float
    row_ms: float
    lossy: tuple[int, ...] = ()
    accepted_ids: tuple[int, ...] = ()
    """Those drafts."""

    @property
    def upto(self) -> int:
        """Number of tokens now final."""
        return self.base + self.accepted + len(self.ids)


@dataclass(frozen=True, slots=True)
class Finished:
    """The session ended well, or by its own limits."""

    session: int
    reason: FinishReason
    upto: int
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class Failed:
    """The session ended by an error; its KV is free again."""

    session: int
    error: OutriderError


Event: TypeAlias = Opened | Committed | Finished | Failed


@dataclass(frozen=True, slots=True)
class ClassLoad:
    """The part of one class in a load."""

    sessions: int = 0
    """Running and queued."""
    queued_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """A snapshot for routers."""

    running_sessions: int
    queued_sessions: int
    queued_prompt_tokens: int
    kv_blocks_total: int
    kv_blocks_free: int
    fixed_ms: float
    row_ms: float
    max_sessions: int
    paused_sessions: int = 0
    """In the middle of a reply, their KV kept, without a place in the calls."""
    overload_level: int = 0
    """policy.overload.Level."""
    num_instances: int = 1
    """Engine instances that these numbers are of."""
    low: ClassLoad = ClassLoad()
    """Of LOW sessions, which those above go before."""
    medium: ClassLoad = ClassLoad()
    """Of MEDIUM ones."""
    stay_ms: float = 0.0
    """Mean time for which a session keeps its place; 0: none has ended yet."""
