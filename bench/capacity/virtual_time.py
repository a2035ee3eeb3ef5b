"""A clock that jumps from event to event."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class VirtualTime:
    """What is to happen, in the order of its times; at the same time, in the order of asking."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Have `do` called then, or now if that has passed."""
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), do))

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._heap:
            self.now, _, do = heapq.heappop(self._heap)
            do()
