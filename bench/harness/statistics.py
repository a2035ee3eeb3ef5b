"""Order statistics, means of ratios, and their 95 % intervals.

Intervals take samples as independent. Those of one run on one machine are not wholly so: an
interval says what the sample's size alone leaves open.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

MIN_BEYOND = 5
"""A quantile is printed if at least this many samples are expected beyond it, which takes 100
samples for p95 and 500 for p99. With fewer it is the luck of one or two samples."""
MIN_FOR_INTERVAL = 6
"""With fewer samples not even lowest to highest contains the median with 95 % (5 samples: 1 - 2 *
0.5**5 = 94 %)."""
_EXACT_UP_TO = 1000
_NORMAL_975 = 1.96
_STUDENT_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14)
"""Two-sided 95 % quantiles by degrees of freedom, from 1 on (Student, 1908)."""
_STUDENT_T_MANY = 2.0
"""The same for more degrees of freedom than that, rounded up."""


def quantile(samples: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics (Hyndman and Fan, 1996, type 7), for any number
    of samples: for medians, quartiles and intermediate figures. The published tail of a
    distribution is a `told_quantile`."""
    ranked = sorted(samples)
    at = share * (len(ranked) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (at - below)


def median(samples: Sequence[float]) -> float:
    return quantile(samples, 0.5)


def told_quantile(samples: Sequence[float], share: float) -> float | None:
    """The quantile, or None where fewer than MIN_BEYOND samples are expected beyond it."""
    return quantile(samples, share) if len(samples) >= num_needed(share) else None


def num_needed(share: float) -> int:
    """Samples below which the quantile `share` is not printed."""
    return math.ceil(round(MIN_BEYOND / min(share, 1 - share), 6))


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median, by order statistics and the binomial distribution: no
    assumption about the samples' shape. Lowest to highest below MIN_FOR_INTERVAL samples."""
    ranked = sorted(samples)
    outside = _num_outside(len(ranked))
    return ranked[outside], ranked[len(ranked) - 1 - outside]


def _num_outside(count: int) -> int:
    """Order statistics that lie outside the interval, on each side."""
    if count > _EXACT_UP_TO:
        return max(0, math.floor((count - _NORMAL_975 * math.sqrt(count)) / 2))
    outside, below = 0, 1  # `below`: of 2**count, the outcomes with at most `outside` heads
    while below * 40 <= 2**count:
        outside += 1
        below += math.comb(count, outside)
    return max(0, outside - 1)


def mean_ratio(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of positive ratios, and its 95 % interval (Student's t, over logarithms);
    everything, for one ratio alone. Raises statistics.StatisticsError for none."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, free = fmean(logs), len(logs) - 1
    factor = _STUDENT_T[free - 1] if free <= len(_STUDENT_T) else _STUDENT_T_MANY
    error = factor * stdev(logs) / math.sqrt(len(logs)) if free else math.inf
    return math.exp(mean), math.exp(mean - error), math.exp(mean + error)


def share_interval(num_true: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927)."""
    if not count:
        return 0.0, 1.0
    square, share = _NORMAL_975**2, num_true / count
    middle = (share + square / (2 * count)) / (1 + square / count)
    spread_ = share * (1 - share) / count + square / (4 * count**2)
    error = _NORMAL_975 * math.sqrt(spread_) / (1 + square / count)
    # Exactly 0 and 1 at the ends, where the terms cancel but for their last bits.
    low = max(0.0, middle - error) if num_true else 0.0
    return low, min(1.0, middle + error) if num_true < count else 1.0


def pooled(parts: Iterable[Sequence[float]]) -> list[float]:
    """The samples of all rounds together."""
    return list(itertools.chain.from_iterable(parts))
