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
"""Pull of the last slopes, rows^2 and attention^2: keeps them while all calls are alike."""
_REPACKING_ROWS = 24
"""What reading a sequence's KV once costs, in rows of attention over it: measured on SmolLM2-135M,
contexts of 500 and 1,500 tokens, rounds of 1 to 128 rows."""
_MAX_SURPRISE = 2.0
"""A call longer than this times the prediction was held up by something else."""
_MIN_ROW_MS = 1e-4


def attention(num_tokens: int, past: int) -> float:
    """What a round of num_tokens behind `past` ones reads of its context, in thousands of tokens
    times rows."""
    return (num_tokens + _REPACKING_ROWS) * (past + num_tokens / 2) / 1e3


class CostModel:
    """Duration of an engine call, fixed_ms + row_ms * rows + context_ms * attention, by least
    squares that forget exponentially (Haykin, Adaptive Filter Theory, chapter 10). Rows are those
    that the engine computes, and what a change of their number costs; so it must see every call."""

    def __init__(self, fixed_ms: float, row_ms: float, sizing: SizingRule = NO_SIZING) -> None:
        self._size = CallSize(sizing)
        self.fixed_ms = fixed_ms
        self.row_ms = row_ms
        self.context_ms = 0.0
        self._means = _Moments()
        for rows in _PRIOR_ROWS:
            self._means.add(rows, 0.0, fixed_ms + row_ms * rows)

    def predict_ms(self, rows: int, context: float = 0.0) -> float:
        """Of the next call; `context` is its rounds' attention(), added up."""
        return self.fixed_ms + self.row_ms * self._size.cost_rows(rows) + self.context_ms * context

    def free_rows(self, rows: int) -> int:
        """Rows that the next call computes anyway if it has `rows` of use."""
        return max(rows, self._size.peek(rows))

    def observe(self, rows: int, duration_ms: float, context: float = 0.0) -> None:
        """One call of this many rows and this attention took this long."""
        held_up_ms = _MAX_SURPRISE * self.predict_ms(rows, context)
        self._means.add(self._size.cost_rows(rows), context, min(duration_ms, held_up_ms))
        self._size.take(rows)
        row_ms, context_ms = self._means.slopes(self.row_ms, self.context_ms)
        mean_rows, mean_context, mean_ms = self._means.means()
        self.row_ms = min(max(row_ms, _MIN_ROW_MS), max(mean_ms / max(mean_rows, 1.0), _MIN_ROW_MS))
        self.context_ms = min(context_ms, mean_ms / max(mean_context, 1.0))
        self.fixed_ms = max(0.0, mean_ms - self.row_ms * mean_rows - self.context_ms * mean_context)


class _Moments:
    """Weighted sums of two causes x, z and of what they cost, y."""

    def __init__(self) -> None:
        self._n = self._x = self._z = self._y = 0.0
        self._xx = self._zz = self._xz = self._xy = self._zy = 0.0

    def add(self, x: float, z: float, y: float) -> None:
        keep = _FORGETTING
        self._n = self._n * keep + 1.0
        self._x, self._z, self._y = self._x * keep + x, self._z * keep + z, self._y * keep + y
        self._xx, self._zz = self._xx * keep + x * x, self._zz * keep + z * z
        self._xz = self._xz * keep + x * z
        self._xy, self._zy = self._xy * keep + x * y, self._zy * keep + z * y

    def means(self) -> tuple[float, float, float]:
        return self._x / self._n, self._z / self._n, self._y / self._n

    def slopes(self, last_x: float, last_z: float) -> tuple[float, float]:
        """Cost per x and per z, neither of them drawn away from the last ones without reason;
        that of z is not negative."""
        x, z, y = self.means()
        xx, zz = self._xx - self._x * x + _RIDGE, self._zz - self._z * z + _RIDGE
        xz = self._xz - self._x * z
        xy = self._xy - self._x * y + _RIDGE * last_x
        zy = self._zy - self._z * y + _RIDGE * last_z
        slope_z = (zy * xx - xy * xz) / (xx * zz - xz * xz)
        if slope_z <= 0.0:
            return xy / xx, 0.0
        return (xy - xz * slope_z) / xx, slope_z


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
