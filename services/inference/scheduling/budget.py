"""What a row costs, and which drafts are worth one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.inference.engines.sizing import NO_SIZING, CallSize, SizingRule

_FORGETTING = 0.98
"""Weight of an observation against the next one: the last 50 calls count."""
_PRIOR_ROWS = (2.0, 64.0)
_RIDGE = 4.0
"""Pull of the last slope, rows^2: keeps it while all calls have the same number of rows."""
_MAX_SURPRISE = 2.0
"""A call longer than this times the prediction was held up by something else."""
_MIN_ROW_MS = 1e-4


class CostModel:
    """Duration of an engine call, fixed_ms + row_ms * rows, by least squares that forget
    exponentially (Haykin, Adaptive Filter Theory, chapter 10). Rows are those that the engine
    computes, and what a change of their number costs; so it must see every call."""

    def __init__(self, fixed_ms: float, row_ms: float, sizing: SizingRule = NO_SIZING) -> None:
        self._size = CallSize(sizing)
        self.fixed_ms = fixed_ms
        self.row_ms = row_ms
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        for rows in _PRIOR_ROWS:
            self._add(rows, fixed_ms + row_ms * rows)

    def predict_ms(self, rows: int) -> float:
        """Of the next call."""
        return self.fixed_ms + self.row_ms * self._size.cost_rows(rows)

    def observe(self, rows: int, duration_ms: float) -> None:
        """One call of this many rows took this long."""
        cost_rows = float(self._size.cost_rows(rows))
        self._add(cost_rows, min(duration_ms, _MAX_SURPRISE * self.predict_ms(rows)))
        self._size.take(rows)
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx - self._x * mean_x
        covariance = self._xy - self._x * mean_y
        slope = (covariance + _RIDGE * self.row_ms) / (variance + _RIDGE)
        self.row_ms = min(max(slope, _MIN_ROW_MS), max(mean_y / max(mean_x, 1.0), _MIN_ROW_MS))
        self.fixed_ms = max(0.0, mean_y - self.row_ms * mean_x)

    def _add(self, x: float, y: float) -> None:
        self._weight = self._weight * _FORGETTING + 1.0
        self._x = self._x * _FORGETTING + x
        self._y = self._y * _FORGETTING + y
        self._xx = self._xx * _FORGETTING + x * x
        self._xy = self._xy * _FORGETTING + x * y


@dataclass(frozen=True, slots=True)
class Bid:
    """One session's drafts in the race for rows."""

    survival: Sequence[float]
    """Probability that draft i and all before it are accepted; never rises."""
    num_paid: int = 0
    """Leading drafts whose rows the round has anyway (min_rows)."""


def admit_drafts(bids: Sequence[Bid], rows: int, max_rows: int, cost: CostModel) -> list[int]:
    """How many drafts of each bid to verify in a call that has `rows` rows without them.

    Every bidder commits one token for certain. The choice has the largest geometric mean of the
    bidders' expected commits per millisecond (Kelly's proportional fairness, 1998). For one
    session, or all alike, that is the goodput of TurboSpec (arXiv 2406.14066); in a mixed call
    it weighs what a draft gains for its session against the time it costs all others, where the
    goodput's sum would let those who repeat themselves slow down those who do not.
    """
    counts = [min(bid.num_paid, len(bid.survival)) for bid in bids]
    offers = sorted(
        (-gain, index)
        for index, (bid, count) in enumerate(zip(bids, counts, strict=True))
        for gain in _gains(bid.survival, count)
    )[: max(0, max_rows - rows)]
    best, gained, num_taken = 0.0, 0.0, 0
    for number, (negated, _) in enumerate(offers, 1):
        gained -= negated
        slowdown = cost.predict_ms(rows + number) / cost.predict_ms(rows)
        if gained - len(bids) * math.log(slowdown) > best:
            best, num_taken = gained - len(bids) * math.log(slowdown), number
    for _, index in offers[:num_taken]:
        counts[index] += 1
    return counts


def _gains(survival: Sequence[float], num_paid: int) -> Iterator[float]:
    """By how much each draft raises the logarithm of its session's expected commits; falling."""
    expected = 1.0 + sum(survival[:num_paid])
    for chance in survival[num_paid:]:
        yield math.log1p(chance / expected)
        expected += chance
