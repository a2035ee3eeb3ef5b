"""How fast waiting sessions leave the queue, and what those are told who find no room. Pure."""

from __future__ import annotations

from typing import Final

FIRST_INTERVAL_S: Final = 0.25
"""Assumed time between two sessions that leave, before the first did."""

MIN_SAMPLES: Final = 5
_SMOOTHING: Final = 0.1
_PATIENCE: Final = 4.0
"""A pause this many times longer than usual is the new usual."""


class Drain:
    """Time between two sessions of a model that leave for a replica, while some wait."""

    def __init__(self) -> None:
        self._interval_s = FIRST_INTERVAL_S
        self._num_samples = 0
        self.num_waiting = 0
        self._since = 0.0
        self._promised_at = 0.0

    @property
    def is_known(self) -> bool:
        """Whether enough have left to tell."""
        return self._num_samples >= MIN_SAMPLES

    def joined(self, now: float) -> None:
        """A session waits."""
        if not self.num_waiting:
            self._since = now
        self.num_waiting += 1

    def gave_up(self) -> None:
        """One waits no more, and got nothing."""
        self.num_waiting -= 1

    def left(self, now: float) -> None:
        """One that waited got a replica."""
        self.num_waiting -= 1
        self._num_samples += 1
        share = max(_SMOOTHING, 1.0 / self._num_samples)
        self._interval_s += (now - self._since - self._interval_s) * share
        self._since = now

    def interval_s(self, now: float) -> float:
        """Expected time between two that leave."""
        pause_s = now - self._since if self.num_waiting else 0.0
        return max(self._interval_s, pause_s / _PATIENCE, 1e-3)

    def promise_s(self, wait_s: float, now: float) -> float:
        """When to come back, from now: after `wait_s`, one after the other at the pace at which
        sessions leave. Told the same time, all who were refused would come back at once."""
        self._promised_at = max(self._promised_at, now + wait_s) + self.interval_s(now)
        return self._promised_at - now
