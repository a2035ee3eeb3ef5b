"""What an engine call costs."""

from __future__ import annotations

from outrider.engines.sizing import NO_SIZING, SizingRule

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
    that the engine computes (SizingRule)."""

    def __init__(self, fixed_ms: float, row_ms: float, sizing: SizingRule = NO_SIZING) -> None:
        self._sizing = sizing
        self.fixed_ms = fixed_ms
        self.row_ms = row_ms
        self.context_ms = 0.0
        self._means = _Moments()
        for rows in _PRIOR_ROWS:
            self._means.add(rows, 0.0, fixed_ms + row_ms * rows)

    def predict_ms(self, rows: int, context: float = 0.0) -> float:
        """Of the next call; `context` is its rounds' attention(), added up."""
        return self.fixed_ms + self.row_ms * self._sizing.padded(rows) + self.context_ms * context

    def free_rows(self, rows: int) -> int:
        """Rows that a call computes anyway if it has `rows` of use."""
        return self._sizing.padded(rows)

    def observe(self, rows: int, duration_ms: float, context: float = 0.0) -> None:
        """One call of this many rows and this attention took this long."""
        held_up_ms = _MAX_SURPRISE * self.predict_ms(rows, context)
        self._means.add(self._sizing.padded(rows), context, min(duration_ms, held_up_ms))
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
