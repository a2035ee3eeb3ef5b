"""Outcomes of earlier drafts, used to judge the next: acceptance rates by source and depth in the
chain, and calibration of the probabilities that sources give."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from outrider.lru_map import LruMap
from outrider.speculation.calibration import (
    LEAST_SLOPE,
    MOST_SHIFT,
    MOST_SLOPE,
    POSITION_BEGINS,
    Platt,
    SourceCalibrations,
    logit,
    position_bucket,
)
from outrider.speculation.learnt import Numbers, Restore, nothing, row_of
from services.edge.session.display_worth import DisplayWorth
from services.edge.session.speedup_model import SessionConditions
from services.edge.session.timing import OwnTokensAverage

_BUCKET_ENDS: Final = (1, 2, 4, 8)
"""Depths 0, 1, 2-3, 4-7, and all beyond."""
NUM_BUCKETS: Final = len(_BUCKET_ENDS) + 1
_DECAY: Final = 0.99
"""Weight that a sum keeps with each new outcome."""
_PRIOR_RATE: Final = 0.6
"""Acceptance rate assumed before the first outcome..."""
_PRIOR_WEIGHT: Final = 4.0
"""...which counts as much as this number of outcomes."""
_MIN_OUTCOMES: Final = 30.0
"""Decayed count of outcomes from which on rates are relied upon."""
_MOST_TRIED: Final = 1 / (1 - _DECAY) + 1
"""A decayed count is never more."""
_ACCEPTANCE: Final = "acceptance."
_CALIBRATION: Final = "platt."
_OWN_TOKENS: Final = "own_tokens"
_MAX_OWN_TOKENS: Final = 1e6
_MOST_SEEN: Final = 1e9
"""Numbers that are kept are named by these, and bounded by them when they are read."""
_BUCKET_NAMES: Final = frozenset(map(str, range(NUM_BUCKETS)))
MAX_GROUPS: Final = 1024
"""Trust groups whose averages are kept, some 10 KB each."""
MAX_SOURCES: Final = 8
"""Sources with statistics of their own..."""
OTHER: Final = "other"
"""...and all further ones count as this one."""
_FIRST_LEARNING_RATE: Final = 0.1
_LAST_LEARNING_RATE: Final = 0.01
_RATE_HALVED_AFTER: Final = 20
"""Drafts after which the learning rate is half of the first."""
_SLOPE_LEARNING_RATE: Final = 0.25
"""Relative to the shift's: the slope's gradient is larger by the logit of the confidence."""


@dataclass(frozen=True, slots=True)
class DraftOutcome:
    """Outcome of one draft."""

    source: str
    position: int
    """The reply's token it was made for, counted from 0."""
    depth: int
    """Drafts of its chain before it, confirmed ones included."""
    confidence: float
    """The probability its source gave it, given that all before it are right."""
    right: bool
    first_wrong: bool = False
    """All before it in the chain were right."""

    @property
    def decides(self) -> bool:
        """Whether it says something about its source. Drafts behind a wrong one do not: what they
        continue was wrong already."""
        return self.right or self.first_wrong


def bucket_of(depth: int) -> int:
    """The bucket of a depth from 0 on."""
    return bisect_right(_BUCKET_ENDS, depth)


@dataclass(slots=True)
class _Sum:
    right: float = 0.0
    tried: float = 0.0

    def add(self, right: bool) -> None:
        self.right = self.right * _DECAY + right
        self.tried = self.tried * _DECAY + 1.0

    def restore(self, row: Sequence[float]) -> None:
        right, tried = row
        if right <= tried:
            self.right, self.tried = right, tried

    def rate(self, prior: float) -> float:
        return (self.right + prior * _PRIOR_WEIGHT) / (self.tried + _PRIOR_WEIGHT)


class Acceptance:
    """Probability that a draft is right if all before it in its chain are.

    A ratio of decaying sums, not a mean of ratios, which short chains would bias (Jensen). For a
    depth with few outcomes, the rate leans on the rate of `average`, the acceptance of all chats of
    the group; without an average, on the rate over all depths.
    """

    def __init__(self, average: Acceptance | None = None) -> None:
        self._average = average
        self._sums: dict[tuple[str, int], _Sum] = {}
        self._pooled = [_Sum() for _ in range(NUM_BUCKETS)]
        self._all = _Sum()
        self.version = 0
        """Chains counted since it was made."""

    def numbers(self) -> dict[str, list[float]]:
        """For `restore`."""
        sums = {f"{source}.{bucket}": total for (source, bucket), total in self._sums.items()}
        sums |= {f".{bucket}": total for bucket, total in enumerate(self._pooled)} | {
            ".": self._all
        }
        return {_ACCEPTANCE + name: [total.right, total.tried] for name, total in sums.items()}

    def restore(self, numbers: Numbers) -> None:
        """Continue from earlier `numbers`; unknown entries are ignored."""
        for name in numbers:
            row = row_of(numbers, name, 2, 0.0, _MOST_TRIED)
            if row is None or not name.startswith(_ACCEPTANCE):
                continue
            source, _, last = name.removeprefix(_ACCEPTANCE).rpartition(".")
            bucket = int(last) if last in _BUCKET_NAMES else None
            if source and bucket is not None:
                self._sum_of(source, bucket).restore(row)
            elif not source and bucket is not None:
                self._pooled[bucket].restore(row)
            elif not source and not last:
                self._all.restore(row)

    @property
    def is_reliable(self) -> bool:
        """Whether there were enough outcomes to decide by."""
        return self._all.tried >= _MIN_OUTCOMES

    @property
    def sources(self) -> tuple[str, ...]:
        """Whose drafts were counted."""
        return tuple(dict.fromkeys(source for source, _ in self._sums))

    def observe(self, outcomes: Iterable[DraftOutcome], ended_at: int | None = None) -> None:
        """Count drafts that are right, and the first wrong one. `ended_at`: the depth at which a
        chain had no draft for a token that was then committed; it counts as a wrong one."""
        self.version += 1
        for outcome in outcomes:
            if outcome.decides:
                bucket = bucket_of(outcome.depth)
                self._sum_of(outcome.source, bucket).add(outcome.right)
                self._count(bucket, outcome.right)
        if ended_at is not None:
            self._count(bucket_of(ended_at), False)

    def rate(self, bucket: int) -> float:
        """Probability that there is a right draft at the depths of this bucket."""
        if self._average is not None:
            prior = self._average.rate(bucket)
        else:
            prior = self._all.rate(_PRIOR_RATE)
        return self._pooled[bucket].rate(prior)

    def rate_of(self, source: str) -> float:
        """Share of this source's drafts that were right, over all depths; 0 if there were none."""
        sums = [total for (name, _), total in self._sums.items() if name == source]
        tried = sum(total.tried for total in sums)
        return sum(total.right for total in sums) / tried if tried else 0.0

    def survival(self, num_tokens: int) -> list[float]:
        """[num_tokens + 1] probability that the first 0, 1, ... drafts of a chain are all right."""
        chances, chance = [1.0], 1.0
        for bucket, end in enumerate((*_BUCKET_ENDS, num_tokens)):
            rate = self.rate(bucket)
            for _ in range(len(chances) - 1, min(end, num_tokens)):
                chance *= rate
                chances.append(chance)
        return chances

    def _count(self, bucket: int, right: bool) -> None:
        self._pooled[bucket].add(right)
        self._all.add(right)

    def _sum_of(self, source: str, bucket: int) -> _Sum:
        if source not in self.sources and len(self.sources) >= MAX_SOURCES:
            source = OTHER
        return self._sums.setdefault((source, bucket), _Sum())


class Calibration:
    """Online Platt scaling of the probabilities that one source gives its drafts: after each draft
    shift and slope move along the gradient of its log loss. The order of confidences is kept;
    text of another kind is followed within some hundred drafts."""

    def __init__(self, start: Platt | None = None) -> None:
        """`start`: the first calibration; None: confidences are taken as they are."""
        self._line = start or Platt()
        self._num_seen = 0

    def numbers(self) -> list[float]:
        """Shift, slope and drafts seen, for `restore`."""
        return [self._line.shift, self._line.slope, float(self._num_seen)]

    def restore(self, shift: float, slope: float, num_seen: float) -> None:
        """Continue from the values of an earlier `numbers`; invalid ones are ignored."""
        if abs(shift) <= MOST_SHIFT and LEAST_SLOPE <= slope <= MOST_SLOPE and num_seen >= 0:
            self._line = Platt(shift, slope)
            self._num_seen = int(num_seen)

    def chance(self, confidence: float) -> float:
        """Probability that a draft of this confidence is right, given that all before it are."""
        return self._line.chance(confidence)

    def observe(self, confidence: float, right: bool) -> None:
        """A draft of this confidence was decided, all before it having been right."""
        decayed = _FIRST_LEARNING_RATE / (1 + self._num_seen / _RATE_HALVED_AFTER)
        rate = max(_LAST_LEARNING_RATE, decayed)
        self._num_seen += 1
        x = logit(confidence)
        step = rate * (right - self._line.chance(confidence))
        shift = min(max(self._line.shift + step, -MOST_SHIFT), MOST_SHIFT)
        slope = self._line.slope + step * x * _SLOPE_LEARNING_RATE
        self._line = Platt(shift, min(max(slope, LEAST_SLOPE), MOST_SLOPE))


class Calibrations:
    """One Calibration per source and bucket of positions in the reply, for greedy replies or for
    sampled ones."""

    def __init__(self, shipped: SourceCalibrations | None = None, *, are_sampled: bool) -> None:
        """`shipped`: where they begin."""
        self._shipped = shipped or SourceCalibrations()
        self._are_sampled = are_sampled
        self._by_source: dict[str, tuple[Calibration, ...]] = {}

    @property
    def sources(self) -> tuple[str, ...]:
        """Sources that have a calibration."""
        return tuple(self._by_source)

    def numbers(self) -> dict[str, list[float]]:
        """For `restore`."""
        return {
            self._prefix + source: [value for line in lines for value in line.numbers()]
            for source, lines in self._by_source.items()
        }

    def restore(self, numbers: Numbers) -> None:
        """Continue from earlier `numbers`; unknown entries are ignored."""
        for name in numbers:
            row = row_of(numbers, name, 3 * len(POSITION_BEGINS), -_MOST_SEEN, _MOST_SEEN)
            if row is not None and name.startswith(self._prefix):
                for bucket, begin in enumerate(POSITION_BEGINS):
                    line = self._of(name.removeprefix(self._prefix), begin)
                    line.restore(*row[3 * bucket : 3 * bucket + 3])

    @property
    def _prefix(self) -> str:
        """Start of the names under which its numbers are kept."""
        return f"{_CALIBRATION}{'sampled' if self._are_sampled else 'greedy'}."

    def chance(self, source: str, confidence: float, position: int) -> float:
        """Probability that a draft for position `position` of the reply is right, given that all
        before it are."""
        return self._of(source, position).chance(confidence)

    def observe(self, source: str, confidence: float, position: int, right: bool) -> None:
        """Such a draft was decided, all before it having been right."""
        self._of(source, position).observe(confidence, right)

    def _of(self, source: str, position: int) -> Calibration:
        if source not in self._by_source and len(self._by_source) >= MAX_SOURCES:
            source = OTHER
        found = self._by_source.get(source)
        if found is None:
            lines = self._shipped.of(source, are_sampled=self._are_sampled)
            found = self._by_source[source] = tuple(Calibration(line) for line in lines)
        return found[position_bucket(position)]


@dataclass(slots=True)
class SharedConditions:
    """Round trip and pace that the edge last measured in a chat. All trust groups share them: they
    reveal nothing about any text."""

    conditions: SessionConditions | None = None


class Averages:
    """Statistics that an edge learned from the chats of one trust group, for the group's later
    chats."""

    def __init__(
        self,
        shipped: SourceCalibrations | None = None,
        shared: SharedConditions | None = None,
        numbers: Numbers = MappingProxyType({}),
    ) -> None:
        """`shipped`: calibrations before the first chat, of the edge's own drafts alone: the
        drafter process has calibrated its confidences already. `shared`: common to all groups;
        `numbers`: what was kept of this one."""
        self._shared = shared or SharedConditions()
        self.acceptance = Acceptance()
        self.own_tokens = OwnTokensAverage()
        self.display_worth = DisplayWorth()
        """What drafting for display brought the group's chats since the edge started."""
        self._calibrations = tuple(
            Calibrations(shipped, are_sampled=are_sampled) for are_sampled in (False, True)
        )
        self.acceptance.restore(numbers)
        for calibrations in self._calibrations:
            calibrations.restore(numbers)
        own_tokens = row_of(numbers, _OWN_TOKENS, 2, 1.0, _MAX_OWN_TOKENS)
        if own_tokens is not None:
            self.own_tokens.restore(*own_tokens)

    def numbers(self) -> dict[str, list[float]]:
        """All of it, to be kept."""
        found = self.acceptance.numbers() | {_OWN_TOKENS: self.own_tokens.numbers()}
        for calibrations in self._calibrations:
            found |= calibrations.numbers()
        return found

    @property
    def conditions(self) -> SessionConditions | None:
        """Those that a new chat assumes until it has measured its own. `own_tokens` depends on the
        text, so it is the group's."""
        found = self._shared.conditions
        return None if found is None else replace(found, own_tokens=self.own_tokens.tokens)

    @conditions.setter
    def conditions(self, found: SessionConditions) -> None:
        self._shared.conditions = found

    def calibrations(self, *, sampled: bool) -> Calibrations:
        """Those of greedy replies, or of sampled ones."""
        return self._calibrations[sampled]


class GroupAverages:
    """One Averages per trust group: acceptance rates reveal something of the text of chats."""

    def __init__(
        self,
        shipped: SourceCalibrations | None = None,
        max_groups: int = MAX_GROUPS,
        restore: Restore = nothing,
    ) -> None:
        """`shipped`: calibrations that a group begins with, unless `restore` gives its kept
        statistics."""
        self._shipped = shipped
        self._restore = restore
        self._shared = SharedConditions()
        self._groups: LruMap[bytes, Averages] = LruMap(max_groups)

    def __len__(self) -> int:
        return len(self._groups)

    def of(self, group: bytes) -> Averages:
        """The group's; beyond `max_groups` the least recently used is dropped. Those of the empty
        group are new each time."""
        found = self._groups.get(group)
        if found is None:
            found = Averages(self._shipped, self._shared, self._restore(group).numbers)
        if group:
            self._groups.put(group, found)
        return found

    def known(self, group: bytes) -> Averages | None:
        """The group's, if it has some."""
        return self._groups.peek(group)
