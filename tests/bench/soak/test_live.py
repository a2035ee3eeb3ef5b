"""What a service holds, as the soak reads it from the admin port."""

from __future__ import annotations

import asyncio

from bench.soak.live import HeldResources, held_resources, left_over
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.config import AdminConfig
from outrider.telemetry.metrics import Metrics


def test_less_than_before_is_nothing_left() -> None:
    assert HeldResources(5, 3, 9).beyond(HeldResources(4, 3, 11)) == HeldResources(1, 0, 0)


async def test_tasks_that_stay_are_told_from_those_that_end() -> None:
    metrics, stop = Metrics("test"), asyncio.Event()
    server = AdminServer(AdminConfig(), ready=lambda: (True, ""), registry=metrics.registry)
    url = f"http://127.0.0.1:{await server.start()}/metrics"
    before = await held_resources(url)
    tasks = [asyncio.create_task(stop.wait()) for _ in range(2)]
    assert (await held_resources(url)).beyond(before).tasks == 2
    stop.set()
    await asyncio.gather(*tasks)
    assert (await left_over(url, before)).tasks == 0
    await server.stop()
    metrics.close()
