"""The stall monitor: every delay in the histogram, long ones with what went on meanwhile."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import CollectorRegistry

from outrider.telemetry.stalls import StallMonitor


def test_only_long_delays_are_stalls() -> None:
    registry = CollectorRegistry()
    monitor = StallMonitor(registry, cause=lambda since: "tokens" if since >= 7 else "other")
    for since, lag_ms in ((1.0, 0.4), (2.0, 6.0), (7.0, 30.0), (8.0, -0.1)):
        monitor.late(since, lag_ms)
    stalls = "outrider_loop_stalls_total"
    assert registry.get_sample_value("outrider_loop_lag_ms_count") == 4
    assert registry.get_sample_value(stalls, {"during": "tokens"}) == 1
    assert registry.get_sample_value(stalls, {"during": "other"}) == 1


async def test_a_loop_that_is_held_up_is_seen() -> None:
    registry = CollectorRegistry()
    monitor = StallMonitor(registry, interval_s=0.001)
    monitor.start()
    time.sleep(0.03)  # noqa: ASYNC251  (what must never be done is what is looked for)
    await asyncio.sleep(0.01)
    assert registry.get_sample_value("outrider_loop_stalls_total", {"during": "other"})
    monitor.stop()
    assert registry.get_sample_value("outrider_loop_lag_ms_count") is None
