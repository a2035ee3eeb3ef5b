"""What sources' promises are worth, learned from what became of their drafts."""

from __future__ import annotations

from typing import Final

from outrider.speculation.calibration import (
    LEAST_SLOPE,
    MOST_SHIFT,
    MOST_SLOPE,
    Platt,
    SourceCalibrations,
    logit,
    position_bucket,
)

_FIRST_RATE, _LAST_RATE = 0.1, 0.01
_HALVED_AFTER = 20
_SLOPE_RATE = 0.25
"""Of the shift's: the slope's gradient is as much larger as promises are far from even."""
MAX_SOURCES: Final = 8
"""Sources are told apart up to this many; further names count as one."""
OTHER: Final = "other"
"""That one."""


class Calibration:
    """Platt scaling online: shift and slope move after each draft along the gradient of its log
    loss. Keeps the order of promises, and follows text of another kind within some hundred
    drafts."""

    def __init__(self, start: Platt | None = None) -> None:
        """Without `start`, promises are taken at their word at first."""
        self._line = start or Platt()
        self._num_seen = 0

    def chance(self, promise: float) -> float:
        """The chance that a draft is right, given all before it are; from what was promised."""
        return self._line.chance(promise)

    def observe(self, promise: float, right: bool) -> None:
        """A draft of this promise was decided, all before it having been right."""
        rate = max(_LAST_RATE, _FIRST_RATE / (1 + self._num_seen / _HALVED_AFTER))
        self._num_seen += 1
        x = logit(promise)
        step = rate * (right - self._line.chance(promise))
        shift = min(max(self._line.shift + step, -MOST_SHIFT), MOST_SHIFT)
        slope = self._line.slope + step * x * _SLOPE_RATE
        self._line = Platt(shift, min(max(slope, LEAST_SLOPE), MOST_SLOPE))


class Calibrations:
    """Of greedy replies, or of sampled ones: one Calibration per source and place in the reply."""

    def __init__(self, shipped: SourceCalibrations | None = None, *, are_sampled: bool) -> None:
        """`shipped`: where they begin."""
        self._shipped = shipped or SourceCalibrations()
        self._are_sampled = are_sampled
        self._by_source: dict[str, tuple[Calibration, ...]] = {}

    @property
    def sources(self) -> tuple[str, ...]:
        """Whose promises were weighed."""
        return tuple(self._by_source)

    def chance(self, source: str, promise: float, position: int) -> float:
        """The chance that a draft for the reply's token `position` is right, from what its source
        promises."""
        return self._of(source, position).chance(promise)

    def observe(self, source: str, promise: float, position: int, right: bool) -> None:
        """Such a draft was decided, all before it having been right."""
        self._of(source, position).observe(promise, right)

    def _of(self, source: str, position: int) -> Calibration:
        if source not in self._by_source and len(self._by_source) >= MAX_SOURCES:
            source = OTHER
        found = self._by_source.get(source)
        if found is None:
            lines = self._shipped.of(source, are_sampled=self._are_sampled)
            found = self._by_source[source] = tuple(Calibration(line) for line in lines)
        return found[position_bucket(position)]
