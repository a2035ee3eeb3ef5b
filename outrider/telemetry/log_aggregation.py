"""Repeated events become one log line per interval, with a count per kind (pure).

The first event is logged at once; those of the next `interval_s` together, so that a flood of
refusals cannot fill the log.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

MAX_KINDS: Final = 32
"""Kinds counted separately; further ones are counted as OTHER."""
OTHER: Final = "OTHER"


class EventAggregator:
    """The occurrences of one event. Times in seconds."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self.interval_s = interval_s
        self._counts: Counter[str] = Counter()
        self._logged_at = float("-inf")

    def add(self, kind: str) -> None:
        """Count one occurrence."""
        is_known = kind in self._counts or len(self._counts) < MAX_KINDS
        self._counts[kind if is_known else OTHER] += 1

    def next_at(self) -> float:
        """When the next line may be logged."""
        return self._logged_at + self.interval_s

    def due(self, now: float) -> dict[str, int] | None:
        """Counts by kind since the last line, if a line is due now."""
        if not self._counts or now < self.next_at():
            return None
        counts = dict(self._counts)
        self._counts.clear()
        self._logged_at = now
        return counts
