"""What a service holds, as the soak reads it from the admin port, and how growth is judged."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from bench.soak.held import MAX_GROWTH_MB, growth_mb, held_resources, left_over
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.config import AdminConfig
from outrider.telemetry.metrics import Metrics

MIB = 2**20 / 1e6


async def test_tasks_that_stay_are_told_from_those_that_end() -> None:
    metrics, stop = Metrics("test"), asyncio.Event()
    server = AdminServer(AdminConfig(), ready=lambda: (True, ""), registry=metrics.registry)
    url = f"http://127.0.0.1:{await server.start()}/metrics"
    before = await held_resources(url)
    tasks = [asyncio.create_task(stop.wait()) for _ in range(2)]
    assert (await held_resources(url) - before)["tasks"] == 2
    stop.set()
    await asyncio.gather(*tasks)
    assert (await left_over(url, before))["tasks"] == 0
    assert await left_over(url, before + Counter(tasks=1)) == {}
    await server.stop()
    metrics.close()


def test_growth_is_that_of_the_last_third_over_the_one_before_by_sessions() -> None:
    sessions = range(0, 9000, 100)
    assert growth_mb([100.0] * 90, sessions) == 0.0
    assert growth_mb([100.0 + 0.002 * n for n in sessions], sessions) == pytest.approx(2 * MIB)
    assert growth_mb([100.0 - 0.001 * n for n in sessions], sessions) == pytest.approx(-MIB)


def test_what_grows_in_the_first_third_alone_is_not_counted() -> None:
    sessions = list(range(0, 9000, 100))
    rss = [90.0 + min(number, 2900) / 290 for number in sessions]
    assert growth_mb(rss, sessions) == 0.0


def test_single_samples_that_jump_do_not_matter_but_a_leak_of_some_kilobytes_does() -> None:
    chance, sessions = random.Random(1), list(range(0, 6000, 20))
    noise = [chance.choice((0.0, 0.0, 0.0, 0.4, 8.0)) for _ in sessions]
    assert growth_mb([90.0 + jump for jump in noise], sessions) < MAX_GROWTH_MB / 2
    leaking = [90.0 + 0.008 * n + jump for n, jump in zip(sessions, noise, strict=True)]
    assert growth_mb(leaking, sessions) > MAX_GROWTH_MB


def test_a_run_without_sessions_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="too short"):
        growth_mb([100.0] * 9, [5] * 9)
