"""Whether it is worth asking one that failed (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """After so many failures in a row nobody asks for a while, then one does; pauses double."""

    max_failures: int = 3
    first_pause_s: float = 0.5
    max_pause_s: float = 30.0


class Breaker:
    """Times are seconds of one clock. Not thread-safe."""

    def __init__(self, policy: BreakerPolicy) -> None:
        self._policy = policy
        self._num_failures = 0
        self._pause_s = 0.0
        self._paused_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether it is given up for now: the last `max_failures` attempts failed."""
        return self._num_failures >= self._policy.max_failures

    def allows(self, now: float) -> bool:
        """Whether to try. After a pause one may, and the others wait for what becomes of it for
        as long as the next pause would be."""
        if not self.is_open:
            return True
        if now < self._paused_until:
            return False
        self._paused_until = now + self._pause_s
        return True

    def succeeded(self) -> None:
        """An attempt went well."""
        self._num_failures, self._pause_s = 0, 0.0

    def failed(self, now: float) -> None:
        """An attempt failed, or took too long."""
        policy = self._policy
        self._num_failures += 1
        if self.is_open:
            self._pause_s = min(max(policy.first_pause_s, 2 * self._pause_s), policy.max_pause_s)
            self._paused_until = now + self._pause_s
