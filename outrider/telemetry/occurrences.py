"""What happens again and again is said once per interval, with how often (pure).

The first one is said at once. Then nothing is for `interval_s`, and what came meanwhile is said
together: a log that grows with every refusal is one more thing that a flood may fill.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

MAX_KINDS: Final = 32
"""Kept apart in one line; further ones are OTHER."""
OTHER: Final = "OTHER"


class Occurrences:
    """Of one event. Times in seconds."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self.interval_s = interval_s
        self._counts: Counter[str] = Counter()
        self._said_at = float("-inf")

    def add(self, kind: str) -> None:
        """It happened."""
        is_known = kind in self._counts or len(self._counts) < MAX_KINDS
        self._counts[kind if is_known else OTHER] += 1

    def next_at(self) -> float:
        """When the next line may be said."""
        return self._said_at + self.interval_s

    def due(self, now: float) -> dict[str, int] | None:
        """What is to be said now: how often each kind happened since the last time."""
        if not self._counts or now < self.next_at():
            return None
        counts = dict(self._counts)
        self._counts.clear()
        self._said_at = now
        return counts
