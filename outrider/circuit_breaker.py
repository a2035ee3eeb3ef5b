"""A circuit breaker: whether to try a server that failed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.backoff import Backoff


@dataclass(frozen=True, slots=True)
class CircuitBreakerPolicy:
    """After `max_failures` in a row the breaker opens for a pause; then one attempt is let through.
    The pause doubles with every further failure."""

    max_failures: int = 3
    first_pause_s: float = 0.5
    max_pause_s: float = 30.0


class CircuitBreaker:
    """Times are seconds of one clock. Several attempts may be under way. Not thread-safe."""

    def __init__(self, policy: CircuitBreakerPolicy) -> None:
        self._policy = policy
        self._backoff = Backoff(policy.first_pause_s, policy.max_pause_s)
        self._num_failures = 0
        self._pause_s = 0.0
        self._paused_until = 0.0
        self._is_tried = False
        """An attempt was let through after a pause, and has not ended."""

    @property
    def is_open(self) -> bool:
        """Whether the last `max_failures` attempts failed."""
        return self._num_failures >= self._policy.max_failures

    def allows(self, now: float) -> bool:
        """Whether to try. After a pause this is true once; the others stay away for another pause,
        within which that attempt ends."""
        if not self.is_open:
            return True
        if now < self._paused_until:
            return False
        self._paused_until = now + self._pause_s
        self._is_tried = True
        return True

    def succeeded(self) -> None:
        """An attempt went well."""
        self._num_failures = 0
        self._is_tried = False
        self._backoff.reset()

    def failed(self, now: float) -> None:
        """An attempt failed, or took too long. Where it began before the breaker opened, that is
        nothing new, and makes the pause no longer."""
        was_open = self.is_open
        self._num_failures += 1
        if self.is_open and (self._is_tried or not was_open):
            self._is_tried = False
            self._pause_s = self._backoff.next_s()
            self._paused_until = now + self._pause_s
