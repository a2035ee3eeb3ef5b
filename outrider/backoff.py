"""Exponential backoff: pauses between attempts that double (pure)."""

from __future__ import annotations

from math import inf


class Backoff:
    """Pauses between attempts that fail, each twice as long as the one before, within bounds.

    Jitter, and when to give up, are the caller's.
    """

    def __init__(self, first_s: float, max_s: float = inf) -> None:
        """The first pause and the longest one, in seconds; the first may be the longest."""
        self._first_s = first_s
        self._max_s = max_s
        self._next_s = min(first_s, max_s)

    def next_s(self) -> float:
        """Seconds to wait now that one more attempt has failed."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._max_s)
        return pause_s

    def reset(self) -> None:
        """An attempt succeeded: the next failure is followed by the first pause."""
        self._next_s = min(self._first_s, self._max_s)
