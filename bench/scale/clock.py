"""Virtual time: jumps from one scheduled call to the next."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Clock:
    """Runs calls in order of their time; those of the same time in the order they were asked."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds."""
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call it then; a time that has passed is now."""
        due = max(when, self.now)
        heapq.heappush(self._due, (due, next(self._numbers), call, arguments))

    def after(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call it so many seconds from now."""
        self.at(self.now + delay_s, call, *arguments)

    def run(self, until_s: float) -> None:
        """Go on until then."""
        while self._due and self._due[0][0] <= until_s:
            self.now, _, call, arguments = heapq.heappop(self._due)
            call(*arguments)
        self.now = until_s
