"""When a peer that answers but fails is left alone, and for how long. Pure.

A circuit breaker (Nygard, "Release It!", 2007, chapter 5) that counts failures within a window;
the pauses between trials grow as they do between the attempts to connect.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuarantinePolicy:
    """What the operator decides."""

    max_failures: int = 3
    """Failures within `window_s` that put a peer into quarantine."""
    window_s: float = 30.0
    first_s: float = 2.0
    """The first pause before a trial; each trial that fails doubles it..."""
    max_s: float = 60.0
    """...up to this."""


class Quarantine:
    """The failures of one peer, and what follows from them."""

    def __init__(self, policy: QuarantinePolicy) -> None:
        self._policy = policy
        self._failed_at: deque[float] = deque(maxlen=policy.max_failures)
        self._pause_s = policy.first_s
        self._cleared_at: float | None = None
        self.is_active = False
        """Whether the peer gets nothing but trials, should it be reachable."""
        self.until = 0.0
        """When the next trial may begin."""
        self.count = 0
        """How often it was put there."""

    def fail(self, now: float) -> bool:
        """Count a failure; whether there have been too many of late."""
        self._failed_at.append(now)
        oldest = self._failed_at[0]
        is_full = len(self._failed_at) == self._policy.max_failures
        return is_full and now - oldest <= self._policy.window_s

    def begin(self, now: float) -> None:
        """Pause; longer than the last time if the peer was cleared only just, or never."""
        cleared_at, window_s = self._cleared_at, self._policy.window_s
        if not self.is_active and (cleared_at is None or now - cleared_at > window_s):
            self._pause_s = self._policy.first_s
        self.is_active = True
        self.until = now + self._pause_s
        self._pause_s = min(2.0 * self._pause_s, self._policy.max_s)
        self.count += 1

    def clear(self, now: float) -> None:
        """A trial went well."""
        self.is_active = False
        self._cleared_at = now
        self._failed_at.clear()
