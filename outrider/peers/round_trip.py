"""Smoothed and least round trip of one path. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

_WINDOW: Final = 64
_ALPHA: Final = 1 / 8


class RoundTrip:
    """Smoothed and least round trip of one path, in milliseconds.

    The smoothing is TCP's (RFC 6298, alpha 1/8). A sample counts for at most four times the
    least one of the last 64 plus 10 ms: a stalled event loop is not a longer path.
    """

    def __init__(self, initial_ms: float) -> None:
        """`initial_ms` is a guess, until the first sample."""
        self.smoothed_ms = initial_ms
        self._least_ms = initial_ms
        self._samples: deque[float] = deque(maxlen=_WINDOW)

    @property
    def is_measured(self) -> bool:
        """Whether a round trip was measured."""
        return bool(self._samples)

    @property
    def min_ms(self) -> float:
        """The least recent sample; the initial estimate before the first."""
        return self._least_ms if self._samples else self.smoothed_ms

    def add(self, sample_ms: float) -> None:
        """Take one measurement; the first replaces the estimate."""
        first = not self._samples
        self._samples.append(sample_ms)
        self._least_ms = min(self._samples)
        counted = min(sample_ms, 4.0 * self.min_ms + 10.0)
        self.smoothed_ms = (
            counted if first else self.smoothed_ms + _ALPHA * (counted - self.smoothed_ms)
        )

    def guess(self, estimate_ms: float) -> None:
        """Set a better guess; ignored after the first sample."""
        if not self._samples:
            self.smoothed_ms = estimate_ms
