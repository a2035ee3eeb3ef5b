"""How many sessions may be opened a second time, so that a failing fleet is not run down by it.

A share of the sessions that there are, and some more, within a window: the retry budget of Finagle
(`RetryBudget`), over live sessions instead of requests per second, since one replica's end moves
all that it had at once. What the budget does not allow now waits; nothing fails for its sake. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MovePolicy:
    """What the operator decides."""

    share: float = 1.0
    """Moves within the window over the sessions that are live..."""
    least: int = 64
    """...and so many more."""
    window_s: float = 10.0
    timeout_s: float = 30.0
    """A session that finds no other replica for so long is ended."""
    max_lost_replicas: int = 2
    """A request with which so many replicas were lost, one after the other, is ended."""


class MoveBudget:
    """The moves of the last window. Times in seconds."""

    def __init__(self, policy: MovePolicy) -> None:
        self._policy = policy
        self._moved_at: deque[float] = deque()

    def allows(self, num_sessions: int, now: float) -> bool:
        """Whether one more of `num_sessions` live sessions may move."""
        while self._moved_at and self._moved_at[0] <= now - self._policy.window_s:
            self._moved_at.popleft()
        return len(self._moved_at) < self._policy.least + self._policy.share * num_sessions

    def spend(self, now: float) -> None:
        """One moved."""
        self._moved_at.append(now)
