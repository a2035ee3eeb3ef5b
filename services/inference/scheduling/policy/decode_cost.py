"""What rows more cost a call that decodes, near the sizes such calls have."""

from __future__ import annotations

from outrider.engines.sizing import NO_SIZING, SizingRule
from outrider.speculation.suffix_drafter import LEAST_SURVIVAL

_FORGETTING = 0.98
"""Weight of an observation against the next one: the last 50 calls count."""
_RIDGE = 16.0
"""Pull of the expected slope, rows^2, where calls all have nearly the same size."""
_MAX_SURPRISE = 1.5
"""A call longer than this times the prediction was held up by something else."""
_MIN_MS = 1e-4
_MOST = 0.6
"""Drafts as likely as this are always looked for: some rows are free."""
_FAR = 2
"""Below the smallest calls seen lately over this the line may say anything: what is smaller is
taken to cost in proportion, the most that a row can."""


class DecodeCost:
    """Duration of calls without prompt tokens: a line near the sizes that they have.

    A line of its own: the rows of a long prompt are cheaper than the first few behind every
    reply, and a line through both belittles what drafts cost. Least squares that forget
    exponentially (Haykin, Adaptive Filter Theory, chapter 10).
    """

    def __init__(self, fixed_ms: float, row_ms: float, sizing: SizingRule = NO_SIZING) -> None:
        """The first guess of the line."""
        self._sizing = sizing
        self.fixed_ms = fixed_ms
        self.row_ms = row_ms
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._least = 0.0

    def price_ms(self, rows: int) -> float:
        """Duration of a call that has `rows` of use."""
        size = float(self._sizing.padded(rows))
        near = max(size, self._least / _FAR)
        share = size / near if near else 1.0
        return max(_MIN_MS, (self.fixed_ms + self.row_ms * near) * share)

    def free_rows(self, rows: int) -> int:
        """Rows that such a call computes."""
        return self._sizing.padded(rows)

    def least_survival(self, num_sessions: int) -> float:
        """Drafts less likely than this are not worth looking for in calls of so many sessions: none
        of them pays for its row where all sessions are alike."""
        share = self.row_ms * num_sessions / self.price_ms(max(1, num_sessions))
        return min(_MOST, max(LEAST_SURVIVAL, share))

    def observe(self, rows: int, duration_ms: float, expected_row_ms: float) -> None:
        """A call of this many rows, all of them behind replies, took this long. The slope is drawn
        to `expected_row_ms` while calls of nearly the same size say nothing of it."""
        if self._weight:
            duration_ms = min(duration_ms, _MAX_SURPRISE * self.price_ms(rows))
        self._add(float(self._sizing.padded(rows)), duration_ms)
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx - self._x * mean_x
        covariance = self._xy - self._x * mean_y
        slope = (covariance + _RIDGE * expected_row_ms) / (variance + _RIDGE)
        # Where the curve is steep the line may start below zero: it holds near the sizes seen.
        self.row_ms = max(slope, _MIN_MS)
        self.fixed_ms = mean_y - self.row_ms * mean_x

    def _add(self, x: float, y: float) -> None:
        self._least = min(x, x + _FORGETTING * (self._least - x)) if self._weight else x
        self._weight = self._weight * _FORGETTING + 1.0
        self._x = self._x * _FORGETTING + x
        self._y = self._y * _FORGETTING + y
        self._xx = self._xx * _FORGETTING + x * x
        self._xy = self._xy * _FORGETTING + x * y
