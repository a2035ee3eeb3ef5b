"""How likely a draft is right: hit rates by source, learned online, and calibrations of them.

`HitRates` and `ChainCalibration` learn from the text itself. `SourceCalibrations` are fitted on
recorded replies, per source and position in the reply; they turn the confidence of a source into a
probability before a chat has shown its own rates (`shipped.py` has their file form). Without them,
confidences are used as they are: a wrong one costs speed and retracted text, and is soon corrected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isfinite, log
from typing import Final, TypeAlias

from outrider.speculation.ngrams import NUM_BINS, NUM_TABLES

_BIN_OF_LENGTH = (0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7)
NUM_COPY_BINS = 9
"""Matches of 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16 and more tokens."""
MEMORY_BINS = NUM_COPY_BINS
"""First of the bins of an NgramMemory: NUM_BINS per table."""
PRIOR_BINS = MEMORY_BINS + NUM_TABLES * NUM_BINS
"""First of the bins of an NgramPrior."""
_GREEDY_RATES = (
    *(0.25, 0.58, 0.71, 0.77, 0.82, 0.86, 0.90, 0.95, 0.98),
    *(0.10, 0.18, 0.22, 0.25, 0.38, 0.50, 0.38, 0.50, 0.55, 0.50, 0.80, 0.92, 0.90, 0.95, 0.97),
    *(0.08, 0.20, 0.30, 0.10, 0.20, 0.50, 0.10, 0.30, 0.70, 0.10, 0.30, 0.70),
)
"""Initial rate per bin for greedy replies, measured with a 135M chat model: copies over 20,000
reply tokens; the others lowered from what replies to similar prompts gave."""
_SAMPLED_RATES = (
    *(0.19, 0.45, 0.55, 0.65, 0.70, 0.75, 0.80, 0.87, 0.93),
    *(0.08, 0.18, 0.30, 0.15, 0.35, 0.55, 0.25, 0.50, 0.65, 0.40, 0.70, 0.85, 0.75, 0.85, 0.90),
    *(0.08, 0.18, 0.25, 0.08, 0.15, 0.42, 0.10, 0.18, 0.50, 0.10, 0.18, 0.50),
)
"""The same at temperature 0.8."""
_MEMORY = 48
_SHARED_MEMORY = 512
"""Observations that an average spans, per bin: of one reply, and of all replies of a salt."""
_BELIEF = 24
_SHARED_BELIEF = 12
_NUM_RANGES = 8
_SCALE = _NUM_RANGES - 1e-9
_FORGETTING = 0.99
_DOUBT = 4.0


Outcome: TypeAlias = tuple[int, bool]
"""A draft for one token: its bin, and whether it was right."""


class HitRates:
    """Share of right drafts by bin, an exponential average each. The initial rates weigh as much as
    `belief` observations, so they adapt soon to text of another kind."""

    def __init__(
        self, rates: Sequence[float] = _GREEDY_RATES, belief: int = _BELIEF, memory: int = _MEMORY
    ) -> None:
        self.rates = list(rates)
        self._weights = [belief] * len(self.rates)
        self._memory = memory

    def numbers(self) -> list[float]:
        """Rates and weights, for `restore`."""
        return [*self.rates, *map(float, self._weights)]

    def restore(self, numbers: Sequence[float]) -> None:
        """Continue from saved `numbers`; anything else is ignored."""
        count = len(self.rates)
        rates, weights = numbers[:count], numbers[count:]
        if len(weights) != count or not all(0 <= rate <= 1 for rate in rates):
            return
        if all(1 <= weight <= self._memory for weight in weights):
            self.rates = list(rates)
            self._weights = [int(weight) for weight in weights]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Count outcomes, in order."""
        rates, weights = self.rates, self._weights
        for which, hit in outcomes:
            weight = weights[which]
            if weight < self._memory:
                weight = weights[which] = weight + 1
            rates[which] += (hit - rates[which]) / weight


def new_average(*, sampled: bool) -> HitRates:
    """Rates with which replies start, greedy or sampled, before any was seen."""
    return HitRates(_SAMPLED_RATES if sampled else _GREEDY_RATES, _SHARED_BELIEF, _SHARED_MEMORY)


def copy_bin(match_length: int) -> int:
    """The bin of a copy after a match of this many tokens. A right token makes the match one
    longer, so the same rates serve all positions."""
    if match_length < len(_BIN_OF_LENGTH):
        return _BIN_OF_LENGTH[match_length]
    return NUM_COPY_BINS - 1


class ChainCalibration:
    """Corrects the survival that hit rates predict by the share of drafts that were accepted, per
    range of the prediction. A chain takes the best of several candidates, and those whose rates are
    overestimated look best: without correction predictions are too high."""

    def __init__(self) -> None:
        self._predicted = [_DOUBT] * _NUM_RANGES
        self._right = [_DOUBT] * _NUM_RANGES
        self._factors = [1.0] * _NUM_RANGES

    def numbers(self) -> list[float]:
        """For `restore`."""
        return [*self._predicted, *self._right]

    def restore(self, numbers: Sequence[float]) -> None:
        """Continue from saved `numbers`; anything else is ignored."""
        predicted, right = numbers[:_NUM_RANGES], numbers[_NUM_RANGES:]
        if len(right) != _NUM_RANGES or not all(value > 0 for value in predicted):
            return
        if all(value >= 0 for value in right):
            self._predicted, self._right = list(predicted), list(right)
            self._factors = [r / p for r, p in zip(right, predicted, strict=True)]

    def apply(self, predicted: Sequence[float]) -> tuple[float, ...]:
        """Corrected survival of each draft of a chain, from the predicted one, 0 .. 1."""
        survival = []
        least = 1.0
        for chance in predicted:
            least = min(least, chance * self._factors[int(chance * _SCALE)])
            survival.append(least)
        return tuple(survival)

    def observe(self, predicted: Sequence[float], num_accepted: int) -> None:
        """Drafts of this predicted survival were verified; the first num_accepted were right."""
        for index, chance in enumerate(predicted):
            which = int(chance * _SCALE)
            self._predicted[which] = self._predicted[which] * _FORGETTING + chance
            self._right[which] = self._right[which] * _FORGETTING + (index < num_accepted)
            self._factors[which] = self._right[which] / self._predicted[which]


POSITION_BEGINS: Final = (0, 1, 2, 3, 8)
"""The first reply token of each bucket: tokens 0, 1, 2, 3 to 7, and all beyond."""


def position_bucket(position: int) -> int:
    """Bucket of the reply's token `position`, counted from 0. The first tokens are the hardest to
    predict."""
    return bisect_right(POSITION_BEGINS, position) - 1


_CLOSEST: Final = 0.005
"""Chances are clamped to this distance from 0 and 1."""
LEAST_SLOPE: Final = 0.2
MOST_SLOPE: Final = 2.0
MOST_SHIFT: Final = 4.0
"""Largest change of log-odds, either way."""


def logit(chance: float) -> float:
    """Log-odds of a chance, which is clamped to _CLOSEST .. 1 - _CLOSEST."""
    near = min(max(chance, _CLOSEST), 1 - _CLOSEST)
    return log(near / (1 - near))


def sigmoid(x: float) -> float:
    """The chance of these log-odds."""
    return 1 / (1 + exp(-x))


@dataclass(frozen=True, slots=True)
class Platt:
    """chance = sigmoid(shift + slope * logit(confidence)) (Platt, 1999). The default is the
    identity, but for the clamp of `logit`."""

    shift: float = 0.0
    slope: float = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError for values that are not finite or reverse the order of chances."""
        if not (isfinite(self.shift) and isfinite(self.slope) and self.slope > 0):
            raise ValueError(f"shift {self.shift} and slope {self.slope} are no Platt scaling")

    def chance(self, confidence: float) -> float:
        """The chance that a draft is right given that all before it are."""
        return sigmoid(self.shift + self.slope * logit(confidence))


Lines: TypeAlias = tuple[Platt, ...]
"""One per bucket of POSITION_BEGINS."""
_IDENTITY: Final[Lines] = (Platt(),) * len(POSITION_BEGINS)


@dataclass(frozen=True, slots=True)
class SourceCalibrations:
    """By the source's name; the default is the identity for every source."""

    greedy: Mapping[str, Lines] = field(default_factory=dict)
    sampled: Mapping[str, Lines] = field(default_factory=dict)

    def of(self, source: str, *, are_sampled: bool) -> Lines:
        """For the drafts of one source in greedy replies, or in sampled ones."""
        return (self.sampled if are_sampled else self.greedy).get(source, _IDENTITY)

    def only(self, source: str) -> SourceCalibrations:
        """The calibrations of one source; the identity for all others."""
        kinds = (self.greedy, self.sampled)
        return SourceCalibrations(*({s: kind[s] for s in (source,) if s in kind} for kind in kinds))
