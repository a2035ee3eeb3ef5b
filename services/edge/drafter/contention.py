"""Whether the draft model's calls take the cores away from others (pure).

Where an edge and a replica share cores that are never idle, every millisecond of the draft model is
one that the replica waits, and drafts cost more than they save. The process sees it by itself: the
kernel counts how long its threads ran and how long they waited for a core. While they wait for
longer than they run, others need the cores, and the model pauses. After a while it tries again; a
try is one window of `window_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuTime:
    """How long all threads of a process ran and waited for a core since it started."""

    ran_ms: float
    waited_ms: float


@dataclass(frozen=True, slots=True)
class ContentionLimits:
    """When the model pauses, and for how long."""

    max_wait_share: float = 0.5
    """The model pauses when its threads waited for more than this share of the time in which they
    could have run. 1 and above: never."""
    window_ms: float = 60.0
    """A share is taken over so much time of running and waiting: some twenty calls of a small draft
    model that has a core, so that one long wait is no reason to pause."""
    first_pause_s: float = 0.5
    max_pause_s: float = 8.0
    """Pauses double from the first to the longest while every try finds the cores taken."""


class CoreContention:
    """Pauses and tries again, by the CPU time of this process."""

    def __init__(self, limits: ContentionLimits) -> None:
        self._limits = limits
        self._began: CpuTime | None = None
        """CPU time at the start of this window; None: it starts with the next observation."""
        self._pause_s = limits.first_pause_s
        self._until = 0.0
        """End of the pause."""

    def is_paused(self, now: float) -> bool:
        """Whether the model should not be asked now."""
        return now < self._until

    def observe(self, total: CpuTime, now: float) -> float:
        """The process's CPU time by now, between two calls of the model. Seconds of the pause that
        begins; 0: none does. Nothing is learnt in a pause."""
        if self.is_paused(now):
            return 0.0
        if self._began is None or total.ran_ms < self._began.ran_ms:  # a thread ended
            self._began = total
            return 0.0
        waited_ms = total.waited_ms - self._began.waited_ms
        window_ms = waited_ms + total.ran_ms - self._began.ran_ms
        if window_ms < self._limits.window_ms:
            return 0.0
        self._began = total
        if waited_ms <= self._limits.max_wait_share * window_ms:
            self._pause_s = self._limits.first_pause_s
            return 0.0
        pause_s = self._pause_s
        self._began = None
        self._until = now + pause_s
        self._pause_s = min(2.0 * pause_s, self._limits.max_pause_s)
        return pause_s


def parse_schedstat(text: str) -> CpuTime:
    """One thread's line of /proc/PID/task/TID/schedstat: nanoseconds run, nanoseconds waited, and
    time slices (Linux, Documentation/scheduler/sched-stats.rst). Zero where the kernel counts
    nothing, and for a thread that has just ended."""
    fields = text.split()
    if len(fields) < 2:
        return CpuTime(0.0, 0.0)
    return CpuTime(int(fields[0]) / 1e6, int(fields[1]) / 1e6)
