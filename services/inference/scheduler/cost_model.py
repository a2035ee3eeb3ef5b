"""How long engine calls take, learned from those that were timed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from outrider.engines.base import NO_SIZING, SizingRule
from outrider.speculation.suffix_drafter import LEAST_SURVIVAL

_FORGETTING = 0.98
"""Weight of an observation against the next one: the last 50 calls count."""
_MIN_ROW_MS = 1e-4

# CostModel
_PRIOR_ROWS = (2.0, 64.0)
"""The first guess enters the fit as two calls of these sizes."""
_ENOUGH_SQUARED_ROWS = sum(rows**2 for rows in _PRIOR_ROWS)
_RIDGE = 4.0
"""Pull of the last slopes, rows^2 and attention^2: keeps them while all calls are alike."""
_REPACKING_ROWS = 24
"""Cost of reading a sequence's KV once, in rows of attention over it: measured on SmolLM2-135M,
contexts of 500 and 1,500 tokens, slices of 1 to 128 rows."""
_MAX_SURPRISE = 2.0
"""An observation counts as at most this many times the prediction: a longer call was delayed by
something else."""
_FIRST_CALLS = 4
"""So many calls tell whether fixed_ms was guessed far too low: the shortest of them was held up by
nothing."""

# DecodeCostModel
_DECODE_RIDGE = 12.0
"""Pull of the expected slope, rows^2, where calls all have nearly the same size."""
_DECODE_MAX_SURPRISE = 1.5
_MAX_LEAST_SURVIVAL = 0.6
"""Drafts at least this likely are always looked for: some rows are free."""
_EXTRAPOLATION = 2
"""The fitted line holds down to the smallest recent call over this; smaller calls are taken to cost
in proportion to their rows, the most that a row can cost."""


def attention_work(num_tokens: int, past: int) -> float:
    """Work for reading the context of a slice of num_tokens behind `past` ones, in thousands of
    tokens times rows."""
    return (num_tokens + _REPACKING_ROWS) * (past + num_tokens / 2) / 1e3


class CostModel:
    """Duration of any engine call: fixed_ms + row_ms * rows + attention_ms * attention work.

    Least squares that forget exponentially (Haykin, Adaptive Filter Theory, chapter 10). Rows are
    those that the engine computes (SizingRule).
    """

    def __init__(self, fixed_ms: float, row_ms: float, sizing: SizingRule = NO_SIZING) -> None:
        """`fixed_ms` and `row_ms`: the first guess."""
        self._sizing = sizing
        self.fixed_ms = fixed_ms
        self.row_ms = row_ms
        self.attention_ms = 0.0
        """Per thousand tokens of context times rows."""
        self._guess = fixed_ms, row_ms
        self._first: list[tuple[int, float, float]] = []
        """Padded rows, attention work and duration of the first calls."""
        self._moments = _Moments()
        self._add_guess(fixed_ms)
        self._squared_rows = 0.0
        """Sum over the calls that were timed: how much they tell of the cost of a row."""

    @property
    def is_guess(self) -> bool:
        """Whether the calls that were timed say less of row_ms than the first guess did, as at
        first: it takes a prompt of 64 tokens, or a few shorter ones. Replies tell little of it."""
        return self._squared_rows < _ENOUGH_SQUARED_ROWS

    def predict_ms(self, rows: int, attention: float = 0.0) -> float:
        """Duration of the next call; `attention` is the sum of its slices' attention_work()."""
        padded = self._sizing.padded(rows)
        return self.fixed_ms + self.row_ms * padded + self.attention_ms * attention

    def decode_ms(self, contexts: Iterable[int], slice_rows: int, draft_rows: float = 0.0) -> float:
        """Duration of a call with a slice of `slice_rows` behind each of these contexts, lengths in
        tokens, and `draft_rows` more: in a series of calls of its size, so without padding."""
        num_slices, attention = 0, 0.0
        for num_tokens in contexts:
            num_slices += 1
            attention += attention_work(slice_rows, num_tokens)
        rows = num_slices * slice_rows + draft_rows
        return self.fixed_ms + self.row_ms * rows + self.attention_ms * attention

    def padded_rows(self, rows: int) -> int:
        """Rows that the engine computes in a call that needs `rows`."""
        return self._sizing.padded(rows)

    def observe(self, rows: int, duration_ms: float, attention: float = 0.0) -> None:
        """Learn from one call with this many rows and this attention work."""
        padded = self._sizing.padded(rows)
        self._squared_rows += padded**2
        if len(self._first) < _FIRST_CALLS:
            self._first.append((padded, attention, duration_ms))
            self._guess_again()
        else:
            self._add(padded, attention, duration_ms)

    def _guess_again(self) -> None:
        """Fit the first calls anew. If fixed_ms was guessed far too low, it is guessed anew: else
        the fit would take the difference for the cost of what these calls have and a guess has not,
        their contexts."""
        self.fixed_ms, self.row_ms = self._guess
        self.attention_ms = 0.0
        shortest_ms, rows = min((duration_ms, rows) for rows, _, duration_ms in self._first)
        guess_ms = self.fixed_ms + self.row_ms * rows
        if shortest_ms > _MAX_SURPRISE * guess_ms:
            self.fixed_ms += shortest_ms - guess_ms
        self._moments = _Moments()
        self._add_guess(self.fixed_ms)
        for call in self._first:
            self._add(*call)

    def _add_guess(self, fixed_ms: float) -> None:
        row_ms = self._guess[1]
        for rows in _PRIOR_ROWS:
            self._moments.add(rows, 0.0, fixed_ms + row_ms * rows)

    def _add(self, padded: int, attention: float, duration_ms: float) -> None:
        """One more call in the fit."""
        predicted_ms = self.fixed_ms + self.row_ms * padded + self.attention_ms * attention
        self._moments.add(padded, attention, min(duration_ms, _MAX_SURPRISE * predicted_ms))
        row_ms, attention_ms = self._moments.slopes(self.row_ms, self.attention_ms, _RIDGE, _RIDGE)
        mean_rows, mean_attention, mean_ms = self._moments.means()
        self.row_ms = min(max(row_ms, _MIN_ROW_MS), max(mean_ms / max(mean_rows, 1.0), _MIN_ROW_MS))
        self.attention_ms = min(attention_ms, mean_ms / max(mean_attention, 1.0))
        variable_ms = self.row_ms * mean_rows + self.attention_ms * mean_attention
        self.fixed_ms = max(0.0, mean_ms - variable_ms)


class _Moments:
    """Weighted sums of two causes x, z and their cost y."""

    def __init__(self) -> None:
        self._n = self._x = self._z = self._y = 0.0
        self._xx = self._zz = self._xz = self._xy = self._zy = 0.0

    def add(self, x: float, z: float, y: float) -> None:
        keep = _FORGETTING
        self._n = self._n * keep + 1.0
        self._x = self._x * keep + x
        self._z = self._z * keep + z
        self._y = self._y * keep + y
        self._xx = self._xx * keep + x * x
        self._zz = self._zz * keep + z * z
        self._xz = self._xz * keep + x * z
        self._xy = self._xy * keep + x * y
        self._zy = self._zy * keep + z * y

    def means(self) -> tuple[float, float, float]:
        return self._x / self._n, self._z / self._n, self._y / self._n

    def slopes(
        self, expected_x: float, expected_z: float, ridge_x: float, ridge_z: float
    ) -> tuple[float, float]:
        """Cost per x and per z, each drawn to the expected one by its ridge, x^2 and z^2; the cost
        of z is not negative."""
        x, z, y = self.means()
        xx = self._xx - self._x * x + ridge_x
        zz = self._zz - self._z * z + ridge_z
        xz = self._xz - self._x * z
        xy = self._xy - self._x * y + ridge_x * expected_x
        zy = self._zy - self._z * y + ridge_z * expected_z
        slope_z = (zy * xx - xy * xz) / (xx * zz - xz * xz)
        if slope_z <= 0.0:
            return xy / xx, 0.0
        return (xy - xz * slope_z) / xx, slope_z


class DecodeCostModel:
    """Duration of calls without prompt tokens: fixed_ms + row_ms * rows + attention_ms * attention
    work, near the sizes that such calls have.

    Separate from CostModel: the rows of a long prompt are cheaper than the first few behind every
    reply, and one line through both makes drafts look cheaper than they are. Contexts are counted
    apart from rows, and without those of drafts: most of the cost of one more reply is reading its
    context, which its drafts share. Least squares that forget exponentially (Haykin, Adaptive
    Filter Theory, chapter 10).
    """

    def __init__(self, fixed_ms: float, row_ms: float, sizing: SizingRule = NO_SIZING) -> None:
        """The first guess of the line."""
        self._sizing = sizing
        self.fixed_ms = fixed_ms
        self.row_ms = row_ms
        self.attention_ms = 0.0
        """Per thousand tokens of context times rows."""
        self._moments = _Moments()
        self._smallest = 0.0
        """Rows of the smallest recent call."""

    def predict_ms(self, rows: int, attention: float = 0.0) -> float:
        """Duration of a call that needs `rows`, and reads its contexts with this much attention
        work."""
        size = float(self._sizing.padded(rows))
        known = max(size, self._smallest / _EXTRAPOLATION)
        share = size / known if known else 1.0
        rows_ms = (self.fixed_ms + self.row_ms * known) * share
        return max(_MIN_ROW_MS, rows_ms + self.attention_ms * attention)

    def padded_rows(self, rows: int) -> int:
        """Rows that the engine computes in a call that needs `rows`."""
        return self._sizing.padded(rows)

    def reading(self, attention: float) -> DecodeCallCost:
        """Cost of calls that read their contexts with this much attention work."""
        return DecodeCallCost(self, attention)

    def least_survival(self, num_sessions: int, attention: float = 0.0) -> float:
        """Drafts less likely than this are not worth looking for in calls of so many sessions: none
        of them pays for its row where all sessions are alike."""
        share = self.row_ms * num_sessions / self.predict_ms(max(1, num_sessions), attention)
        return min(_MAX_LEAST_SURVIVAL, max(LEAST_SURVIVAL, share))

    def observe(
        self,
        rows: int,
        duration_ms: float,
        expected_row_ms: float,
        attention: float = 0.0,
        expected_attention_ms: float = 0.0,
    ) -> None:
        """Learn from a call of this many rows, all of them behind replies. The slopes are drawn to
        the expected ones while calls that are nearly alike do not determine them."""
        if self._smallest:
            longest_ms = _DECODE_MAX_SURPRISE * self.predict_ms(rows, attention)
            duration_ms = min(duration_ms, longest_ms)
        size = float(self._sizing.padded(rows))
        smallest = self._smallest or size
        self._smallest = min(size, size + _FORGETTING * (smallest - size))
        self._moments.add(size, attention, duration_ms)
        mean_rows, mean_attention, mean_ms = self._moments.means()
        ratio = mean_attention / mean_rows if mean_rows else 0.0
        row_ms, attention_ms = self._moments.slopes(
            expected_row_ms,
            expected_attention_ms,
            _DECODE_RIDGE,
            max(_RIDGE, _DECODE_RIDGE * ratio**2),
        )
        # Where the curve is steep the line may start below zero: it holds near the sizes seen.
        self.row_ms = max(row_ms, _MIN_ROW_MS)
        self.attention_ms = min(attention_ms, mean_ms / max(mean_attention, 1.0))
        variable_ms = self.row_ms * mean_rows + self.attention_ms * mean_attention
        self.fixed_ms = mean_ms - variable_ms


class DecodeCallCost(NamedTuple):
    """DecodeCostModel for calls of one set of sessions, whose drafts are still to be chosen."""

    model: DecodeCostModel
    attention: float
    """Attention work of its sessions."""

    def predict_ms(self, rows: int) -> float:
        """Duration of a call that needs `rows`."""
        return self.model.predict_ms(rows, self.attention)

    def padded_rows(self, rows: int) -> int:
        """Rows that the engine computes in such a call."""
        return self.model.padded_rows(rows)
