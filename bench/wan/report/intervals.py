"""What a sample of chats says of all chats: means, shares and ratios with 95 % intervals (pure).

Chats are what is drawn; tokens and characters of one chat share its fate. So intervals come from
drawing chats anew (bootstrap, percentiles), or from the number of chats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.harness.figures import interval, quantile, share_interval, show
from bench.harness.statistics import num_needed

MIN_FOR_P50 = 20
"""Chats below which a median is not told; other quantiles as in all benches (`num_needed`)."""
_MIN_FOR_INTERVAL = 3
_NUM_RESAMPLES = 4000
_SEED = 1


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if not math.isfinite(self.high - self.low):
            return show(self.value)
        return interval(self.value, self.low, self.high)

    def rounded(self, digits: int = 3) -> list[float | None]:
        """Value, low and high for JSON, which knows no infinity."""
        values = (self.value, self.low, self.high)
        return [round(value, digits) if math.isfinite(value) else None for value in values]


def mean(values: Sequence[float]) -> Estimate:
    """Of independent values. Raises ValueError for none."""
    return ratio(values, [1.0] * len(values))


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """The sum of `above` over that of `below`, which is the ratio of their means; [n] belongs to
    chat n in both, and chats are drawn anew in pairs. Raises ValueError for no chats, or if `below`
    is nothing."""
    if not above or not sum(below):
        raise ValueError("nothing to divide by")
    value = sum(above) / sum(below)
    if len(above) < _MIN_FOR_INTERVAL:
        return Estimate(value, -math.inf, math.inf)
    drawn = np.random.default_rng(_SEED).integers(0, len(above), (_NUM_RESAMPLES, len(above)))
    sums, bases = (np.asarray(part, float)[drawn].sum(axis=1) for part in (above, below))
    found = sums[bases > 0] / bases[bases > 0]
    low, high = np.quantile(found, (0.025, 0.975))
    return Estimate(value, float(low), float(high))


def share(part: float, num: int) -> Estimate:
    """A share seen in `num` independent chats. Raises ValueError for none."""
    if not num:
        raise ValueError("no chats")
    return Estimate(part, *share_interval(round(part * num), num))


def told_quantile(values: Sequence[float], at: float) -> float | None:
    """A quantile, where there are values enough to tell it."""
    return quantile(values, at) if len(values) >= max(MIN_FOR_P50, num_needed(at)) else None
