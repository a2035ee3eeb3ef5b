"""A token bucket whose reservations may be returned. Pure.

A reservation that is returned counts as if it had never been made, so the tokens really used by the
sessions admitted during any T seconds are at most `capacity + rate * T` (the conformance of RFC
2697's committed bucket). The deficit of a bucket is a queue's workload, filled by reservations and
drained by time; taking m tokens out of its past lowers it by the least of m and of the smallest
deficit since (Skorokhod's reflection: below that, the bucket would have been full and time lost).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

MAX_LOWS: Final = 256
"""Most smallest deficits remembered; beyond it the oldest are merged, and reservations made at that
time return less than was unused."""


class ReservationBucket:
    """A token bucket that starts full. Methods take `now` in seconds."""

    def __init__(self, capacity: float, rate_per_s: float, now: float) -> None:
        self.capacity = capacity
        self._rate = rate_per_s
        self._deficit = 0.0
        self._at = now
        self._last = 0
        self._reservations: list[int] = []
        self._lows: list[float] = []
        """Deficit just before the reservation with the same index; both lists rise."""

    def level(self, now: float) -> float:
        """Tokens in it; below 0 after a reservation that overdrew it."""
        self._drain(now)
        return self.capacity - self._deficit

    def wait_s(self, tokens: float, now: float) -> float:
        """Seconds until so many tokens are in it; infinite for more than it can hold."""
        if tokens > self.capacity:
            return math.inf
        return max(0.0, (tokens - self.level(now)) / self._rate)

    def take(self, tokens: float, now: float) -> int:
        """Reserve tokens, even more than are in it; returns the reservation's id."""
        self._drain(now)
        while self._lows and self._lows[-1] >= self._deficit:
            self._reservations.pop()
            self._lows.pop()
        self._last += 1
        self._reservations.append(self._last)
        self._lows.append(self._deficit)
        if len(self._lows) > MAX_LOWS:
            del self._reservations[0], self._lows[1]
        self._deficit += tokens
        return self._last

    def give_back(self, reservation: int, tokens: float, now: float) -> None:
        """Return `tokens` unused tokens of a reservation."""
        self._drain(now)
        first = bisect_right(self._reservations, reservation)
        since = self._lows[first] if first < len(self._lows) else self._deficit
        self._deficit -= min(tokens, since, self._deficit)
        # For later reservations the past is now one without these tokens; rounded down.
        self._lows[first:] = [max(0.0, low - tokens) for low in self._lows[first:]]

    def _drain(self, now: float) -> None:
        self._deficit = max(0.0, self._deficit - self._rate * max(0.0, now - self._at))
        self._at = max(self._at, now)
