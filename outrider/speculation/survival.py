"""How likely a guess is right, by where it comes from, learned from the text itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from outrider.speculation.ngrams import MAX_ORDER, NUM_BINS

_BIN_OF_LENGTH = (0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7)
NUM_COPY_BINS = 9
"""Matches of 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16 and more tokens."""
MEMORY_BINS = NUM_COPY_BINS
"""First of the bins of an NgramMemory: NUM_BINS per order."""
PRIOR_BINS = MEMORY_BINS + MAX_ORDER * NUM_BINS
"""First of the bins of an NgramPrior."""
_GREEDY_RATES = (
    *(0.25, 0.58, 0.71, 0.77, 0.82, 0.86, 0.90, 0.95, 0.98),
    *(0.10, 0.18, 0.22, 0.25, 0.38, 0.50, 0.38, 0.50, 0.55, 0.50, 0.80, 0.92),
    *(0.08, 0.20, 0.30, 0.10, 0.20, 0.50, 0.10, 0.30, 0.70, 0.10, 0.30, 0.70),
)
"""Bin by bin, what replies of a 135M chat model began with: copies over 20,000 reply tokens, the
others lowered from what replies to prompts of like kinds gave."""
_SAMPLED_RATES = (
    *(0.19, 0.45, 0.55, 0.65, 0.70, 0.75, 0.80, 0.87, 0.93),
    *(0.08, 0.18, 0.30, 0.15, 0.35, 0.55, 0.25, 0.50, 0.65, 0.40, 0.70, 0.85),
    *(0.08, 0.18, 0.25, 0.08, 0.15, 0.42, 0.10, 0.18, 0.50, 0.10, 0.18, 0.50),
)
"""The same at temperature 0.8."""
_MEMORY = 48
_SHARED_MEMORY = 512
"""Observations per bin after which old ones count little: of one reply, and of all."""
_BELIEF = 24
_SHARED_BELIEF = 12
_NUM_RANGES = 8
_SCALE = _NUM_RANGES - 1e-9
_FORGETTING = 0.99
_DOUBT = 4.0


Outcome: TypeAlias = tuple[int, bool]
"""A guess for one token: its bin, and whether it was right."""


class HitRates:
    """Share of right guesses by bin, an exponential average each. The first rates count like
    `belief` observations, so that text of another kind is soon known."""

    def __init__(
        self, rates: Sequence[float] = _GREEDY_RATES, belief: int = _BELIEF, memory: int = _MEMORY
    ) -> None:
        self.rates = list(rates)
        self._weights = [belief] * len(self.rates)
        self._memory = memory

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Count what became of these guesses, in order."""
        rates, weights = self.rates, self._weights
        for which, hit in outcomes:
            weight = weights[which]
            if weight < self._memory:
                weight = weights[which] = weight + 1
            rates[which] += (hit - rates[which]) / weight


def new_average(*, sampled: bool) -> HitRates:
    """What replies start from, greedy or sampled, before any was seen."""
    return HitRates(_SAMPLED_RATES if sampled else _GREEDY_RATES, _SHARED_BELIEF, _SHARED_MEMORY)


def copy_bin(match_length: int) -> int:
    """The bin of a copy after a match of this many tokens. A right token makes the match one
    longer, so the same rates serve all positions."""
    if match_length < len(_BIN_OF_LENGTH):
        return _BIN_OF_LENGTH[match_length]
    return NUM_COPY_BINS - 1


class Calibration:
    """Turns what bins promise for a chain into what chains kept, by ranges of the promise: a chain
    takes the best of several guesses, and those look best whose rates are estimated too high."""

    def __init__(self) -> None:
        self._promised = [_DOUBT] * _NUM_RANGES
        self._kept = [_DOUBT] * _NUM_RANGES
        self._factors = [1.0] * _NUM_RANGES

    def apply(self, promised: Sequence[float]) -> tuple[float, ...]:
        """Survival of each draft of a chain, from the chances that its bins promise, 0 .. 1."""
        survival, least = [], 1.0
        for chance in promised:
            least = min(least, chance * self._factors[int(chance * _SCALE)])
            survival.append(least)
        return tuple(survival)

    def observe(self, promised: Sequence[float], num_accepted: int) -> None:
        """Drafts of this promise were verified; the first num_accepted of them were right."""
        for index, chance in enumerate(promised):
            which = int(chance * _SCALE)
            self._promised[which] = self._promised[which] * _FORGETTING + chance
            self._kept[which] = self._kept[which] * _FORGETTING + (index < num_accepted)
            self._factors[which] = self._kept[which] / self._promised[which]
