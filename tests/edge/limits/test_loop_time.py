"""The time of a coroutine is billed step by step."""

from __future__ import annotations

import asyncio
import time

import pytest

from services.edge.limits.loop_time import billed


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_work_is_charged_to_who_caused_it_while_it_is_asked_for() -> None:
    took, measures = list[float](), True

    async def work() -> str:
        nonlocal measures
        burn(0.002)
        await asyncio.sleep(0)
        burn(0.002)
        measures = False
        await asyncio.sleep(0)
        burn(0.05)
        return "done"

    assert await billed(work(), took.append, lambda: measures) == "done"
    assert 0.004 <= sum(took) < 0.05


async def test_errors_and_cancellation_pass_through() -> None:
    took, seen = list[float](), list[str]()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def waits() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def run_waits() -> None:
        await billed(waits(), took.append)

    with pytest.raises(ValueError, match="no"):
        await billed(fails(), took.append)
    task = asyncio.create_task(run_waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]
