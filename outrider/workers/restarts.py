"""When a process that died is started again. Pure.

Soon, and then after pauses that double, without a limit on attempts: the cause may pass. A process
that ran for `well_s` begins with the first pause again.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.backoff import Backoff


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Times in seconds."""

    first_pause_s: float = 0.5
    max_pause_s: float = 30.0
    well_s: float = 60.0
    """A process that ran for so long begins with the first pause again."""
    early_s: float = 10.0
    """A process that ends sooner than this after its start, or before it is ready, ended early."""
    max_early: int = 3
    """Number of early ends in a row from which on each is reported with the path of the log."""


class Restarts:
    """Restarts of one process. Methods take `now` in seconds."""

    def __init__(self, policy: RestartPolicy, now: float) -> None:
        """The process was first started at `now`."""
        self._policy = policy
        self._started_at = now
        self._backoff = Backoff(policy.first_pause_s, policy.max_pause_s)
        self._num_early = 0
        self.count = 0
        """How often it was started again."""

    @property
    def does_not_start(self) -> bool:
        """Whether it ended soon after its start too often in a row."""
        return self._num_early >= self._policy.max_early

    @property
    def num_early(self) -> int:
        """How often in a row."""
        return self._num_early

    def died(self, now: float, *, was_ready: bool = True) -> float:
        """Note its end; returns the seconds to wait before restarting it. `was_ready`: whether it
        had become ready."""
        policy = self._policy
        ran_s = now - self._started_at
        is_early = ran_s < policy.early_s or not was_ready
        self._num_early = self._num_early + 1 if is_early else 0
        if ran_s >= policy.well_s:
            self._backoff.reset()
        return self._backoff.next_s()

    def started(self, now: float) -> None:
        """Note that it was restarted."""
        self._started_at = now
        self.count += 1
