"""How likely a guess is right: what its source promises, corrected by what it kept.

The correction is a shift of the promise's log-odds, learnt online (the intercept of Platt
scaling, 1999), by source and by place in the reply: the first tokens of a reply are the hardest.
"""

from __future__ import annotations

import math

from services.edge.drafter.messages import Source

_BUCKET_BEGINS = (16, 4, 1, 0)
_LEAST = 0.005
_SHARED_RATE = 0.02
_RATE = 0.15
"""How far one outcome moves the shift, for all replies and for one."""
_MOST_SHIFT = 4.0


class Rates:
    """Corrections of one reply, which start from those of all."""

    def __init__(self, shared: Rates | None = None) -> None:
        """Without `shared`: those of all replies."""
        self._shared = shared
        self._rate = _RATE if shared else _SHARED_RATE
        self._shifts: list[list[float]] = [
            list(shared._shifts[source]) if shared else [0.0] * len(_BUCKET_BEGINS)
            for source in Source
        ]

    def chance(self, source: Source, position: int, promised: float) -> float:
        """Chance that a guess for the reply's token `position` is right, in (0, 1)."""
        return _shifted(promised, self._shifts[source][_bucket(position)])

    def observe(self, source: Source, position: int, promised: float, hit: bool) -> None:
        """A guess turned out right, or wrong."""
        shifts, bucket = self._shifts[source], _bucket(position)
        moved = shifts[bucket] + self._rate * (hit - _shifted(promised, shifts[bucket]))
        shifts[bucket] = min(max(moved, -_MOST_SHIFT), _MOST_SHIFT)
        if self._shared is not None:
            self._shared.observe(source, position, promised, hit)


def _bucket(position: int) -> int:
    return next(i for i, begin in enumerate(_BUCKET_BEGINS) if position >= begin)


def _shifted(promised: float, shift: float) -> float:
    chance = min(max(promised, _LEAST), 1.0 - _LEAST)
    return 1.0 / (1.0 + (1.0 - chance) / chance * math.exp(-shift))
