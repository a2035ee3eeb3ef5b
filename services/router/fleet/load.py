"""What a replica says of itself: its model, its load. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Model:
    """What a replica serves, as it said itself."""

    name: str
    vocabulary_digest: bytes
    max_context_tokens: int = 0
    codecs: tuple[int, ...] = ()
    """Token codecs it reads; the numbers are the wire's."""
    block_tokens: int = 0
    """Tokens of a block of its prefix cache; 0: it does not say."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a replica says it is."""

    name: str
    """Unique in the mesh."""
    region: str
    model: Model


class ClassLoad(NamedTuple):
    """The part of one class of sessions in a load."""

    sessions: int = 0
    """Running and queued."""
    queued_prompt_tokens: int = 0


NOBODY = ClassLoad()


@dataclass(frozen=True, slots=True)
class Load:
    """A replica's load report. A call of n rows is expected to take fixed_ms + row_ms * n."""

    running_sessions: int = 0
    queued_sessions: int = 0
    queued_prompt_tokens: int = 0
    fixed_ms: float = 0.0
    row_ms: float = 0.0
    max_sessions: int = 0
    """Sessions that run at once, further ones wait; 0: no limit stated."""
    draining: bool = False
    num_instances: int = 1
    """Engines that share the sessions; the cost is that of one call of one of them."""
    overload_level: int = 0
    """What it has given up so far to keep pace (`WatchLoadResponse`): 0 nothing, 4 all it can."""
    low: ClassLoad = NOBODY
    """Of LOW sessions: what a new one of a class above goes before."""
    medium: ClassLoad = NOBODY
    """Of MEDIUM ones."""
    stay_ms: float = 0.0
    """Mean time for which a session keeps its place; 0: not known."""

    def ahead_of(self, priority: int) -> ClassLoad:
        """What a new session of a class finds before it, 1 LOW to 3 HIGH: replicas serve higher
        classes first."""
        sessions = self.running_sessions + self.queued_sessions
        tokens = self.queued_prompt_tokens
        for part in (self.low, self.medium)[: priority - 1]:
            sessions -= part.sessions
            tokens -= part.queued_prompt_tokens
        return ClassLoad(max(0, sessions), max(0, tokens))
