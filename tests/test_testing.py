"""The test helpers tell the truth."""

from __future__ import annotations

import asyncio

import pytest

from outrider.testing import FakeClock, eventually, leak_check


def test_the_fake_clock_moves_only_when_told() -> None:
    clock = FakeClock(5.0)
    assert clock() == clock() == 5.0
    assert clock.advance(1.5) == clock() == 6.5
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


async def test_leaks_are_found() -> None:
    gate = asyncio.Event()
    with pytest.raises(AssertionError, match="1 task"):
        async with leak_check(settle_s=0.01):
            task = asyncio.create_task(gate.wait())
    gate.set()
    await task


async def test_tasks_on_their_way_out_are_no_leak() -> None:
    async with leak_check():
        task = asyncio.create_task(asyncio.sleep(0.01))
    assert task.done()


async def test_eventually() -> None:
    flag = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, flag.set)
    await eventually(flag.is_set)
    with pytest.raises(AssertionError, match="still not true"):
        await eventually(lambda: False, timeout_s=0.01)
