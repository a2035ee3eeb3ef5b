"""What the drafter learned from earlier replies: n-gram statistics, and how likely a source's
drafts are right (pure).

A source's estimate is corrected by Platt scaling, by source and by place in the reply: it starts as
fitted on recorded replies, and its shift is learned online. Both are kept per trust group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from outrider.lru_map import LruMap
from outrider.speculation.calibration import (
    MOST_SHIFT,
    SourceCalibrations,
    logit,
    position_bucket,
    sigmoid,
)
from outrider.speculation.learnt import Learnt, Restore, nothing, row_of
from outrider.speculation.ngram_store import NgramStatistics, NgramStore
from outrider.speculation.ngrams import NgramPrior
from services.edge.drafter.protocol import DraftSource

MAX_ENTRIES: Final = 1 << 18
"""Contexts in the n-gram stores of all groups together: some 40 MB."""
MAX_GROUPS: Final = 1024
"""Most groups whose calibrations are kept, some 4 KB each."""
_SHARED_RATE = 0.02
"""How far one outcome moves the shift that all replies of a kind share."""
_RATE = 0.15
"""How far one outcome moves a reply's own shift."""
SOURCE_NAMES: Final = {source: source.name.lower() for source in DraftSource}
"""Names of the sources in calibration files."""


class OnlineCalibration:
    """Corrections of one reply, or of all replies of a kind; `starting` makes the latter."""

    def __init__(
        self,
        shifts: Sequence[Sequence[float]],
        slopes: Sequence[Sequence[float]],
        shared: OnlineCalibration | None = None,
    ) -> None:
        """[sources, buckets] each. `shared`: the calibration of all replies, which learns as
        well."""
        self._shifts = [list(by_place) for by_place in shifts]
        self._slopes = slopes
        self._shared = shared
        self._rate = _RATE if shared else _SHARED_RATE

    @classmethod
    def starting(cls, start: SourceCalibrations, *, are_sampled: bool) -> OnlineCalibration:
        """The calibration of all greedy replies, or of all sampled ones, before the first."""
        lines = [start.of(SOURCE_NAMES[source], are_sampled=are_sampled) for source in DraftSource]
        return cls(
            [[line.shift for line in by_place] for by_place in lines],
            [[line.slope for line in by_place] for by_place in lines],
        )

    def numbers(self) -> list[float]:
        """The shifts, for `restore`."""
        return [shift for by_place in self._shifts for shift in by_place]

    def restore(self, numbers: Sequence[float]) -> None:
        """Continue from shifts saved by `numbers`."""
        places = len(self._shifts[0])
        self._shifts = [list(numbers[at : at + places]) for at in range(0, len(numbers), places)]

    def for_reply(self) -> OnlineCalibration:
        """A calibration for one reply, which starts with this one's present state."""
        return OnlineCalibration(self._shifts, self._slopes, self)

    def probability(self, source: DraftSource, position: int, estimate: float) -> float:
        """Probability in (0, 1) that a draft for the reply's token `position` is right, from what
        its source estimates."""
        bucket = position_bucket(position)
        return sigmoid(
            self._shifts[source][bucket] + self._slopes[source][bucket] * logit(estimate)
        )

    def observe(self, source: DraftSource, position: int, estimate: float, hit: bool) -> None:
        """A draft turned out right, or wrong."""
        shifts, bucket = self._shifts[source], position_bucket(position)
        moved = shifts[bucket] + self._rate * (hit - self.probability(source, position, estimate))
        shifts[bucket] = min(max(moved, -MOST_SHIFT), MOST_SHIFT)
        if self._shared is not None:
            self._shared.observe(source, position, estimate, hit)


class GroupLearning:
    """Statistics of replies, per trust group. Nothing passes from one group to another: neither
    words nor how often drafts are right."""

    def __init__(
        self,
        prior: NgramPrior | None = None,
        sources: SourceCalibrations | None = None,
        *,
        max_entries: int = MAX_ENTRIES,
        max_groups: int = MAX_GROUPS,
        restore: Restore = nothing,
    ) -> None:
        """`prior` and `sources`: the n-grams and the calibrations that every group starts with;
        `restore`: what was kept of a group."""
        self._restore = restore
        self._ngrams = NgramStore(
            prior, max_entries=max_entries, max_salts=max_groups, restore=restore
        )
        self._sources = sources or SourceCalibrations()
        self._calibrations: LruMap[tuple[bytes, bool], OnlineCalibration] = LruMap(2 * max_groups)

    def of(self, group: bytes, *, are_sampled: bool) -> tuple[NgramStatistics, OnlineCalibration]:
        """Statistics that a group's greedy replies, or its sampled ones, start with and add to. The
        empty group gets new ones each time."""
        key = group, are_sampled
        calibration = self._calibrations.get(key)
        if calibration is None:
            calibration = self._starting(group, are_sampled)
        if group:
            self._calibrations.put(key, calibration)
        return self._ngrams.of(group), calibration

    def version_of(self, group: bytes) -> int:
        """Number of changes of a group's statistics; see learnt.GroupStatistics."""
        known = self._ngrams.known(group)
        return known.version if known else 0

    def learnt_of(self, group: bytes) -> Learnt:
        """A group's statistics to keep; see learnt.GroupStatistics. For a kind of reply that the
        group has not had since the start, the calibration stays as it was kept."""
        learnt = self._ngrams.of(group).learnt()
        numbers = dict(learnt.numbers)
        for are_sampled in (False, True):
            name, calibration = _name(are_sampled), self._calibrations.peek((group, are_sampled))
            if calibration is not None:
                numbers[name] = calibration.numbers()
            elif (kept := self._restore(group).numbers.get(name)) is not None:
                numbers[name] = kept
        return Learnt(learnt.tables, numbers)

    def _starting(self, group: bytes, are_sampled: bool) -> OnlineCalibration:
        """A group's first calibration: the kept one, or the one with which all groups start."""
        calibration = OnlineCalibration.starting(self._sources, are_sampled=are_sampled)
        if group:
            count = len(calibration.numbers())
            numbers = self._restore(group).numbers
            kept = row_of(numbers, _name(are_sampled), count, -MOST_SHIFT, MOST_SHIFT)
            if kept is not None:
                calibration.restore(kept)
        return calibration


def _name(are_sampled: bool) -> str:
    """Under which the shifts of greedy replies, or of sampled ones, are kept."""
    return "calibration.sampled" if are_sampled else "calibration.greedy"
