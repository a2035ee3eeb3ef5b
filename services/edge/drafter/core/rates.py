"""How likely a guess is right: what its source promises, corrected by what it kept.

The correction is Platt scaling of the promise by source and by place in the reply: it begins as
fitted on recorded replies, and its shift is learnt online.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from outrider.speculation.calibration import (
    MOST_SHIFT,
    SourceCalibrations,
    logit,
    position_bucket,
    sigmoid,
)
from services.edge.drafter.messages import Source

_SHARED_RATE = 0.02
_RATE = 0.15
"""How far one outcome moves the shift, for all replies and for one."""
SOURCE_NAMES: Final = {source: source.name.lower() for source in Source}
"""Under which calibrations know them."""


class Rates:
    """Corrections of one reply, or of all replies of a kind; `starting` makes the latter."""

    def __init__(
        self,
        shifts: Sequence[Sequence[float]],
        slopes: Sequence[Sequence[float]],
        shared: Rates | None = None,
    ) -> None:
        """[sources, buckets] each. `shared`: those of all replies, which learn from this one's."""
        self._shifts = [list(by_place) for by_place in shifts]
        self._slopes = slopes
        self._shared = shared
        self._rate = _RATE if shared else _SHARED_RATE

    @classmethod
    def starting(cls, start: SourceCalibrations, *, are_sampled: bool) -> Rates:
        """Those of all greedy replies, or of all sampled ones, before the first."""
        lines = [start.of(SOURCE_NAMES[source], are_sampled=are_sampled) for source in Source]
        return cls(
            [[line.shift for line in by_place] for by_place in lines],
            [[line.slope for line in by_place] for by_place in lines],
        )

    def for_reply(self) -> Rates:
        """Those of one reply, which begin as these are now."""
        return Rates(self._shifts, self._slopes, self)

    def chance(self, source: Source, position: int, promised: float) -> float:
        """Chance that a guess for the reply's token `position` is right, in (0, 1)."""
        bucket = position_bucket(position)
        return sigmoid(
            self._shifts[source][bucket] + self._slopes[source][bucket] * logit(promised)
        )

    def observe(self, source: Source, position: int, promised: float, hit: bool) -> None:
        """A guess turned out right, or wrong."""
        shifts, bucket = self._shifts[source], position_bucket(position)
        moved = shifts[bucket] + self._rate * (hit - self.chance(source, position, promised))
        shifts[bucket] = min(max(moved, -MOST_SHIFT), MOST_SHIFT)
        if self._shared is not None:
            self._shared.observe(source, position, promised, hit)
