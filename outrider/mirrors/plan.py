"""Which shard to fetch next and from which source, and what becomes of those that fail. Pure.

Sources are asked in the order in which they were given: a peer in the region before a bucket far
away. One that breaks off is left alone for a while, meanwhile the next one is asked; what came of a
shard stays with its source, which goes on behind it. One that lies, refuses, or fails several times
in a row is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

MAX_FAILURES: Final = 6
"""In a row, without a byte between them, before a source is dropped. What several connections meet
at once counts once."""
FIRST_PAUSE_S: Final = 0.25
"""After a failure; it doubles with each further one, so that a source is given 8 s in all."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """What to do now."""

    shard: int
    source: int
    """Its place in the order that was given."""
    offset: int
    """Bytes of the shard that this source gave before."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be begun now."""

    until: float
    """Ask again then, in seconds; inf: when something in flight has ended."""


@dataclass(slots=True)
class _Source:
    name: str
    failures: int = 0
    usable_at: float = -math.inf
    lost: str = ""
    """Why it was dropped."""
    lacking: set[int] = field(default_factory=set)
    """Shards that it does not have."""
    slow_with: set[int] = field(default_factory=set)
    """Shards that it was left with."""


class FetchPlan:
    """One fetch of a model's shards. Every `Fetch` that `next` gives has to be ended by exactly one
    of `finished`, `broke_off`, `lacks`, `refused` and `too_slow`."""

    def __init__(self, num_shards: int, sources: Sequence[str], have: Iterable[int] = ()) -> None:
        """`sources`: their names, for messages, the best one first. `have`: shards that are there
        and verified."""
        held = frozenset(have)
        self._pending = [shard for shard in range(num_shards) if shard not in held]
        self._in_flight = set[int]()
        self._sources = [_Source(name) for name in sources]
        self._order = list(range(len(sources)))
        self._begun: dict[int, tuple[int, int]] = {}
        """Shards of which a source gave the beginning: which one, and how many bytes."""
        self.problem = ""
        """Why the model cannot be had from these sources; "" while it may be."""
        self._check()

    @property
    def is_over(self) -> bool:
        """All shards are there, or cannot be had."""
        return bool(self.problem) or not (self._pending or self._in_flight)

    def next(self, now: float) -> Fetch | Wait | None:
        """What to begin; None once the plan is over."""
        if self.is_over:
            return None
        usable = [it for it in self._order if self._is_usable(it, now)]
        for place, shard in enumerate(self._pending if usable else ()):
            source, offset = self._begun.get(shard, (-1, 0))
            if source < 0:
                askable = self._askable(shard)
                source = next((it for it in usable if it in askable), -1)
            if source in usable:
                del self._pending[place]
                self._in_flight.add(shard)
                return Fetch(shard, source, offset)
        return Wait(self._next_usable_at(now))

    def finished(self, fetch: Fetch) -> None:
        """The shard is there, and has its digest."""
        self._in_flight.discard(fetch.shard)
        self._begun.pop(fetch.shard, None)
        self._sources[fetch.source].failures = 0

    def broke_off(self, fetch: Fetch, num_bytes: int, why: str, now: float) -> None:
        """The source ended before the shard did, or could not be reached. `num_bytes` of the shard
        are there, those from before included."""
        source = self._sources[fetch.source]
        has_come = num_bytes > fetch.offset
        if has_come or now >= source.usable_at:  # else it is the failure that the pause is for
            source.failures = 1 if has_come else source.failures + 1
            source.usable_at = now + FIRST_PAUSE_S * 2 ** (source.failures - 1)
        self._give_back(fetch)
        if num_bytes and not source.lost:  # dropped for another shard, say
            self._begun[fetch.shard] = (fetch.source, num_bytes)
        if source.failures >= MAX_FAILURES:
            self._drop(fetch.source, why)

    def lacks(self, fetch: Fetch) -> None:
        """The source does not have this shard."""
        self._sources[fetch.source].lacking.add(fetch.shard)
        self._give_back(fetch)
        self._check()

    def refused(self, fetch: Fetch, why: str) -> None:
        """The source gives nothing, or gave bytes of another digest: it is asked for nothing more,
        and what it began is begun anew elsewhere."""
        self._give_back(fetch)
        self._drop(fetch.source, why)

    def has_other(self, fetch: Fetch, now: float) -> bool:
        """Whether another source could give this shard now, and faster as far as is known."""
        others = (it for it in self._order if it != fetch.source and self._is_usable(it, now))
        return any(self._may_be_fast(it, fetch.shard) for it in others)

    def too_slow(self, fetch: Fetch) -> None:
        """Others are asked before this source from now on, and for this shard, which each source
        is left with once at most: where all are slow, the last one goes on."""
        self._sources[fetch.source].slow_with.add(fetch.shard)
        self._give_back(fetch)
        self._order.remove(fetch.source)
        self._order.append(fetch.source)
        self._unbind(fetch.source)

    def _is_usable(self, source: int, now: float) -> bool:
        it = self._sources[source]
        return not it.lost and it.usable_at <= now

    def _has(self, source: int, shard: int) -> bool:
        it = self._sources[source]
        return not it.lost and shard not in it.lacking

    def _may_be_fast(self, source: int, shard: int) -> bool:
        return self._has(source, shard) and shard not in self._sources[source].slow_with

    def _askable(self, shard: int) -> list[int]:
        """Who has a shard. One that was slow with it is no answer while there is another, though
        that one has a pause: it would be left again."""
        fast = [it for it in self._order if self._may_be_fast(it, shard)]
        return fast or [it for it in self._order if self._has(it, shard)]

    def _next_usable_at(self, now: float) -> float:
        """When a source that is left alone now may be asked again."""
        paused = (it.usable_at for it in self._sources if not it.lost and it.usable_at > now)
        return min(paused, default=math.inf)

    def _give_back(self, fetch: Fetch) -> None:
        """What was begun comes first: only its own source can go on with it."""
        self._in_flight.discard(fetch.shard)
        self._begun.pop(fetch.shard, None)
        self._pending.insert(0, fetch.shard)

    def _drop(self, source: int, why: str) -> None:
        self._sources[source].lost = self._sources[source].lost or why
        self._unbind(source)
        self._check()

    def _unbind(self, source: int) -> None:
        for shard in [it for it, (begun_by, _) in self._begun.items() if begun_by == source]:
            del self._begun[shard]

    def _check(self) -> None:
        """Whether every shard that is wanted can still be had."""
        wanted = [*self._pending, *sorted(self._in_flight)]
        for shard in wanted:
            if not any(self._has(it, shard) for it in self._order):
                self.problem = self._told(shard)
                return

    def _told(self, shard: int) -> str:
        causes = [
            f"{it.name}: {it.lost or f'has no shard {shard} of the model'}" for it in self._sources
        ]
        return "; ".join(causes) or "there is no source"
