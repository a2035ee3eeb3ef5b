"""How often drafts are right, by who made them and how deep in a chain they stand."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from outrider.speculation.calibration import SourceCalibrations
from services.edge.session.control.calibration import MAX_SOURCES, OTHER, Calibrations
from services.edge.session.control.model import Conditions
from services.edge.session.control.pace import OwnPace
from services.edge.session.sources.copies import CopyDrafter

_BUCKET_ENDS = (1, 2, 4, 8)
"""Depths 0, 1, 2-3, 4-7, and all beyond."""
NUM_BUCKETS = len(_BUCKET_ENDS) + 1
_FORGETTING = 0.99
_PRIOR = 0.6
_PRIOR_WEIGHT = 4.0
_SEASONED = 30.0
"""Outcomes, of which those long ago count less."""
MAX_GROUPS: Final = 1024
"""Trust groups whose averages are kept, some 10 KB each."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one draft."""

    source: str
    position: int
    """The reply's token it was made for, counted from 0."""
    depth: int
    """Drafts of its chain before it, confirmed ones included."""
    promise: float
    """Its source's chance that it is right, given all before it are."""
    right: bool
    first_wrong: bool = False
    """All before it in the chain were right."""

    @property
    def decides(self) -> bool:
        """Whether it tells of its source. Drafts behind a wrong one do not: what they continue was
        wrong already."""
        return self.right or self.first_wrong


def bucket_of(depth: int) -> int:
    """The bucket of a depth from 0 on."""
    return bisect_right(_BUCKET_ENDS, depth)


@dataclass(slots=True)
class _Sum:
    right: float = 0.0
    tried: float = 0.0

    def add(self, right: bool) -> None:
        self.right = self.right * _FORGETTING + right
        self.tried = self.tried * _FORGETTING + 1.0

    def rate(self, believed: float) -> float:
        return (self.right + believed * _PRIOR_WEIGHT) / (self.tried + _PRIOR_WEIGHT)


class Acceptance:
    """Chance that a draft is right after right ones: a ratio of sums that forget, not a mean of
    ratios, which would be biased by short chains (Jensen). Where little was seen of a depth, it is
    believed to be as in `average`, that of all chats of a group; and there, as at other depths."""

    def __init__(self, average: Acceptance | None = None) -> None:
        self._average = average
        self._sums: dict[tuple[str, int], _Sum] = {}
        self._pooled = [_Sum() for _ in range(NUM_BUCKETS)]
        self._all = _Sum()

    @property
    def is_seasoned(self) -> bool:
        """Whether enough was seen to go by."""
        return self._all.tried >= _SEASONED

    @property
    def sources(self) -> tuple[str, ...]:
        """Whose drafts were counted."""
        return tuple(dict.fromkeys(source for source, _ in self._sums))

    def observe(self, outcomes: Iterable[Outcome], ended_at: int | None = None) -> None:
        """Count drafts that are right, and the first wrong one. `ended_at`: the depth at which
        nobody had a draft for a token that was then committed, as good as a wrong one."""
        for outcome in outcomes:
            if outcome.decides:
                bucket = bucket_of(outcome.depth)
                self._sum_of(outcome.source, bucket).add(outcome.right)
                self._count(bucket, outcome.right)
        if ended_at is not None:
            self._count(bucket_of(ended_at), False)

    def rate(self, bucket: int) -> float:
        """The chance that there is a right draft at the depths of this bucket."""
        believed = self._all.rate(_PRIOR) if self._average is None else self._average.rate(bucket)
        return self._pooled[bucket].rate(believed)

    def rate_of(self, source: str) -> float:
        """The chance over all depths of this source's drafts; 0 if there were none."""
        sums = [total for (name, _), total in self._sums.items() if name == source]
        tried = sum(total.tried for total in sums)
        return sum(total.right for total in sums) / tried if tried else 0.0

    def survival(self, num_tokens: int) -> list[float]:
        """[num_tokens + 1] chance that the first 0, 1, ... drafts of a chain are all right."""
        rates = [self.rate(bucket) for bucket in range(NUM_BUCKETS)]
        chances = [1.0]
        for depth in range(num_tokens):
            chances.append(chances[-1] * rates[bucket_of(depth)])
        return chances

    def _count(self, bucket: int, right: bool) -> None:
        self._pooled[bucket].add(right)
        self._all.add(right)

    def _sum_of(self, source: str, bucket: int) -> _Sum:
        if source not in self.sources and len(self.sources) >= MAX_SOURCES:
            source = OTHER
        return self._sums.setdefault((source, bucket), _Sum())


@dataclass(slots=True)
class Surroundings:
    """What an edge has learned of its region: round trip and pace, nothing of words."""

    conditions: Conditions | None = None
    """Those that a chat found last."""


class Averages:
    """What an edge has learned from the chats of one trust group, for those to come."""

    def __init__(
        self,
        shipped: SourceCalibrations | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`shipped`: what sources' promises are worth before the first chat. Only the edge's own
        copies begin there: the drafter beside has corrected its promises already.
        `surroundings`: what is common to all groups."""
        own = None if shipped is None else shipped.only(CopyDrafter.SOURCE)
        self._surroundings = surroundings or Surroundings()
        self.acceptance = Acceptance()
        self.own_pace = OwnPace()
        self._calibrations = tuple(
            Calibrations(own, are_sampled=are_sampled) for are_sampled in (False, True)
        )

    @property
    def conditions(self) -> Conditions | None:
        """A new chat takes these for its own until it has seen them. How many tokens the region
        finds by itself follows from the words, so that is the group's own."""
        found = self._surroundings.conditions
        return None if found is None else replace(found, own_tokens=self.own_pace.tokens)

    @conditions.setter
    def conditions(self, found: Conditions) -> None:
        self._surroundings.conditions = found

    def calibrations(self, *, sampled: bool) -> Calibrations:
        """What promises are worth in greedy replies, or in sampled ones."""
        return self._calibrations[sampled]


class GroupAverages:
    """One Averages per trust group: how well drafts do tells of what others say."""

    def __init__(
        self, shipped: SourceCalibrations | None = None, max_groups: int = MAX_GROUPS
    ) -> None:
        """`shipped`: where each begins."""
        self._shipped = shipped
        self._max_groups = max_groups
        self._surroundings = Surroundings()
        self._groups: OrderedDict[bytes, Averages] = OrderedDict()

    def __len__(self) -> int:
        return len(self._groups)

    def of(self, group: bytes) -> Averages:
        """The group's own; the one not asked for longest makes room for a new one. The empty
        group's are new each time."""
        found = self._groups.get(group) or Averages(self._shipped, self._surroundings)
        if group:
            self._groups[group] = found
            self._groups.move_to_end(group)
            if len(self._groups) > self._max_groups:
                self._groups.popitem(last=False)
        return found
