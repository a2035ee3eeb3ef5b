"""The stall monitor: every delay in the histogram, long ones with what went on meanwhile."""

from __future__ import annotations

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from outrider.telemetry.process import RecentMaximum, StallMonitor
from outrider.wake_ups import next_wake_up


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 3)), min_size=1))
def test_the_recent_maximum_is_of_one_to_two_windows(steps: list[tuple[float, float]]) -> None:
    recent, now, noted = RecentMaximum(2.0), 0.0, list[tuple[float, float]]()
    for value, pause_s in steps:
        now += pause_s
        noted.append((now, value))
        told = recent.add(value, now)
        assert told >= max(value for at, value in noted if at > now - 2.0)
        assert told <= max(value for at, value in noted if at >= now - 4.0)


def test_a_loop_is_held_for_as_long_as_its_thread_computes() -> None:
    registry = CollectorRegistry()
    monitor = StallMonitor(registry)
    for since, lag_ms, computed_ms in ((0.0, 80.0, 12.0), (0.1, 30.0, 45.0), (0.2, -1.0, 5.0)):
        monitor.late(since, lag_ms, computed_ms)
    assert registry.get_sample_value("outrider_loop_lag_max_seconds") == 0.08
    assert registry.get_sample_value("outrider_loop_blocked_max_seconds") == 0.03


async def test_a_loop_that_is_held_up_is_seen() -> None:
    registry = CollectorRegistry()
    monitor = StallMonitor(registry, interval_s=0.001)
    monitor.start()
    time.sleep(0.03)  # noqa: ASYNC251  (what must never be done is what is looked for)
    await asyncio.sleep(0.01)
    assert registry.get_sample_value("outrider_loop_stalls_total", {"during": "other"})
    largest_s = registry.get_sample_value("outrider_loop_lag_max_seconds")
    assert largest_s is not None and largest_s >= 0.025
    blocked_s = registry.get_sample_value("outrider_loop_blocked_max_seconds")
    assert blocked_s is not None and blocked_s < 0.025, (
        "it slept: the loop was late, and nobody computed"
    )
    monitor.stop()
    assert registry.get_sample_value("outrider_loop_lag_seconds_count") is None


def test_a_loop_without_work_is_seldom_woken_up() -> None:
    monitor = StallMonitor(CollectorRegistry(), interval_s=0.02)
    assert monitor.next_due(7.0, is_idle=False) == 7.02
    due = monitor.next_due(7.0, is_idle=True)
    assert 7.02 <= due <= 7.13 and due == next_wake_up(7.0), "with all else that can wait"
