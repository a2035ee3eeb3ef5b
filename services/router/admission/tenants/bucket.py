"""A token bucket whose reservations may be given back. Pure.

What was reserved and given back counts as if it had never been taken, so that the tokens really
used by what was let in during any T seconds are at most `capacity + rate * T` (the conformance of
RFC 2697's committed bucket). The deficit of a bucket is a queue's workload, filled by reservations
and drained by time; taking m tokens out of its past lowers it by the least of m and of the smallest
deficit since (Skorokhod's reflection: below that, the bucket would have been full and time lost).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

MAX_LOWS: Final = 256
"""Least deficits remembered; of more the oldest are merged, and give back less."""


class TokenBucket:
    """Starts full. Verbs take `now` in seconds."""

    def __init__(self, capacity: float, rate_per_s: float, now: float) -> None:
        self.capacity = capacity
        self._rate = rate_per_s
        self._deficit = 0.0
        self._at = now
        self._last = 0
        self._numbers: list[int] = []
        self._lows: list[float] = []
        """Deficit just before the reservation of that number; both lists rise."""

    def level(self, now: float) -> float:
        """Tokens in it; below 0 after a reservation that could not be refused."""
        self._drain(now)
        return self.capacity - self._deficit

    def wait_s(self, tokens: float, now: float) -> float:
        """Seconds until so many tokens are in it; infinite for more than it can hold."""
        if tokens > self.capacity:
            return math.inf
        return max(0.0, (tokens - self.level(now)) / self._rate)

    def take(self, tokens: float, now: float) -> int:
        """Reserve tokens, there or not; the number to give them back by."""
        self._drain(now)
        while self._lows and self._lows[-1] >= self._deficit:
            self._numbers.pop()
            self._lows.pop()
        self._last += 1
        self._numbers.append(self._last)
        self._lows.append(self._deficit)
        if len(self._lows) > MAX_LOWS:
            del self._numbers[0], self._lows[1]
        self._deficit += tokens
        return self._last

    def give_back(self, number: int, tokens: float, now: float) -> None:
        """Of that reservation so many tokens were not used."""
        self._drain(now)
        first = bisect_right(self._numbers, number)
        since = self._lows[first] if first < len(self._lows) else self._deficit
        self._deficit -= min(tokens, since, self._deficit)
        # Later ones find a past in which these tokens were never taken; rather less than more.
        self._lows[first:] = [max(0.0, low - tokens) for low in self._lows[first:]]

    def _drain(self, now: float) -> None:
        self._deficit = max(0.0, self._deficit - self._rate * max(0.0, now - self._at))
        self._at = max(self._at, now)
