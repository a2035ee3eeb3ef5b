"""What a row costs, and which drafts are worth one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    exponentially (Haykin, Adaptive Filter Theory, chapter 10)."""

    def __init__(self, fixed_ms: float, row_ms: float) -> None:
        self.fixed_ms = fixed_ms
        self.row_ms = row_ms
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        for rows in _PRIOR_ROWS:
            self._add(rows, fixed_ms + row_ms * rows)

    def predict_ms(self, rows: float) -> float:
        return self.fixed_ms + self.row_ms * rows

    def observe(self, rows: int, duration_ms: float) -> None:
        """One call of this many rows took this long."""
        self._add(float(rows), min(duration_ms, _MAX_SURPRISE * self.predict_ms(rows)))
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

    Every bidder commits one token for certain. Drafts are added, likeliest first over all
    sessions, while expected commits per millisecond rise (the goodput of TurboSpec, arXiv
    2406.14066, over a shared budget as in TETRIS, arXiv 2502.15197).
    """
    counts = [min(bid.num_paid, len(bid.survival)) for bid in bids]
    expected = sum(1.0 + sum(bid.survival[:count]) for bid, count in zip(bids, counts, strict=True))
    offers = sorted(
        (-chance, index)
        for index, (bid, count) in enumerate(zip(bids, counts, strict=True))
        for chance in bid.survival[count:]
    )
    for negated, index in offers[: max(0, max_rows - rows)]:
        if -negated * cost.predict_ms(rows) <= expected * cost.row_ms:
            break
        counts[index] += 1
        expected -= negated
        rows += 1
    return counts
