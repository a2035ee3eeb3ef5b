"""Metrics of the process itself (tasks, threads, files), and how late its event loop is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from outrider import wake_ups
from outrider.telemetry import names
from outrider.telemetry.bucket_histogram import BucketHistogram

_PROC = Path("/proc/self")


class ProcessCollector(Collector):
    """Tasks of one event loop, threads (native ones too), open files and the clock of the
    process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Counted when asked for, the asking included. From any thread."""
        num_tasks = len(asyncio.all_tasks(self._loop))
        yield GaugeMetricFamily(names.PROCESS_TASKS, names.PROCESS_TASKS.help, num_tasks)
        num_threads = _num_entries("task") or threading.active_count()
        yield GaugeMetricFamily(names.PROCESS_THREADS, names.PROCESS_THREADS.help, num_threads)
        if num_files := _num_entries("fd"):
            yield GaugeMetricFamily(names.PROCESS_FILES, names.PROCESS_FILES.help, num_files)
        yield GaugeMetricFamily(names.PROCESS_CLOCK, names.PROCESS_CLOCK.help, time.time())


def _num_entries(folder: str) -> int:
    """0 where the system has no such folder: only Linux does."""
    try:
        return sum(1 for _ in (_PROC / folder).iterdir())
    except OSError:
        return 0


INTERVAL_S: Final = 0.02
"""How often a loop that works is asked how late it is..."""
IDLE_INTERVAL_S: Final = wake_ups.INTERVAL_S
"""Interval while the thread hardly computes, shared with other wake-ups, which are then most of its
work."""
_IDLE_SHARE: Final = 0.1
"""A thread that computes for less than this share of the time hardly computes."""
STALL_MS: Final = 5.0
"""A delay of at least this is counted as a stall, with its cause."""
OTHER: Final = "other"

Cause = Callable[[float], str]
"""Returns what the process has done since a time of the loop's clock; OTHER: not known."""


class RecentMaximum:
    """The largest recent value (pure)."""

    def __init__(self, window_s: float) -> None:
        """Covers the last `window_s` at least, and less than twice as long."""
        self._window_s = window_s
        self._until = float("-inf")
        self._before = self._now = 0.0

    def add(self, value: float, now: float) -> float:
        """The maximum, with a value that is noted at `now`, in seconds."""
        if now >= self._until:
            is_old = now >= self._until + self._window_s
            self._before = 0.0 if is_old else self._now
            self._now = 0.0
            self._until = self._window_s + (now if is_old else self._until)
        self._now = max(self._now, value)
        return max(self._before, self._now)


class _LargestLags(Collector):
    """Gauges of how late the loop was lately, made when they are asked for."""

    def __init__(self) -> None:
        self.lag_s = 0.0
        self.blocked_s = 0.0

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily(names.LOOP_LAG_MAX, names.LOOP_LAG_MAX.help, self.lag_s)
        yield GaugeMetricFamily(names.LOOP_BLOCKED_MAX, names.LOOP_BLOCKED_MAX.help, self.blocked_s)


class StallMonitor:
    """Measures how late the event loop calls back: every `interval_s`, or IDLE_INTERVAL_S while it
    has hardly any work. Only plain numbers are recorded each time."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        cause: Cause | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._registry = registry
        self._cause = cause or (lambda since: OTHER)
        self._interval_s = interval_s
        self._lag = BucketHistogram(names.LOOP_LAG, names.LOOP_LAG_BOUNDARIES_S, ())
        self._recent_lag = RecentMaximum(names.LOOP_LAG_MAX_WINDOW_S)
        self._recent_blocked = RecentMaximum(names.LOOP_LAG_MAX_WINDOW_S)
        self._largest = _LargestLags()
        self._stalls = Counter(names.LOOP_STALLS, names.LOOP_STALLS.help, ["during"], registry=None)
        self._collectors = (self._lag, self._largest, self._stalls)
        for collector in self._collectors:
            registry.register(collector)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch the running loop."""
        self._wait(asyncio.get_running_loop(), time.thread_time(), is_idle=False)

    def stop(self) -> None:
        """Stop watching, and take the figures out of the registry."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            for collector in self._collectors:
                self._registry.unregister(collector)

    def _wait(self, loop: asyncio.AbstractEventLoop, computed_s: float, *, is_idle: bool) -> None:
        since = loop.time()
        due = self.next_due(since, is_idle=is_idle)
        self._timer = loop.call_at(due, self._called, loop, since, due, computed_s)

    def _called(
        self, loop: asyncio.AbstractEventLoop, since: float, due: float, before_s: float
    ) -> None:
        now, computed_s = loop.time(), time.thread_time()
        busy_s = computed_s - before_s
        self.late(since, (now - due) * 1e3, busy_s * 1e3)
        self._wait(loop, computed_s, is_idle=busy_s < _IDLE_SHARE * (now - since))

    def next_due(self, now: float, *, is_idle: bool) -> float:
        """When to call back next; `is_idle`: the loop's thread hardly computed."""
        return wake_ups.next_wake_up(now, IDLE_INTERVAL_S) if is_idle else now + self._interval_s

    def late(self, since: float, lag_ms: float, computed_ms: float = 0.0) -> None:
        """The loop was `lag_ms` late; it was on time at `since`, and its thread has computed for
        `computed_ms` since then."""
        lag_ms = max(0.0, lag_ms)
        lag_s = lag_ms / 1e3
        self._lag.record(lag_s, ())
        now = since + lag_s
        self._largest.lag_s = self._recent_lag.add(lag_s, now)
        self._largest.blocked_s = self._recent_blocked.add(min(lag_ms, computed_ms) / 1e3, now)
        if lag_ms >= STALL_MS:
            self._stalls.labels(self._cause(since)).inc()
