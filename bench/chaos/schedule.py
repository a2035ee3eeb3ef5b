"""Which fault happens when (pure). One seed is one schedule."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")
PERIOD_S: Final = 10.0
"""From one fault to the next."""
_LEAST: Final = 0.2
_MOST: Final = 1.2
"""A fault lasts for so many periods: some are still there when the next comes."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of a schedule."""

    number: int
    at_s: float
    """When it happens: seconds after the schedule's beginning."""
    kind: str
    lasts_s: float
    draw: float
    """In [0, 1): chooses whom it happens to."""

    def choose(self, among: Sequence[T]) -> T:
        """One of them. Raises IndexError where there is none."""
        return among[int(self.draw * len(among))]


def schedule(seed: int, kinds: Sequence[str], period_s: float = PERIOD_S) -> Iterator[PlannedFault]:
    """Faults without end, one a period. Every kind comes once before one comes again, in an order
    that is drawn anew each time, and never twice running."""
    rng, last, number = random.Random(seed), "", 0
    while True:
        turn = rng.sample(kinds, len(kinds))
        if turn[0] == last:
            turn = turn[1:] + turn[:1]
        last = turn[-1]
        for kind in turn:
            lasts_s = period_s * rng.uniform(_LEAST, _MOST)
            yield PlannedFault(number, number * period_s, kind, lasts_s, rng.random())
            number += 1
