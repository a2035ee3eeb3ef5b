"""The test helpers tell the truth."""

from __future__ import annotations

import asyncio

import pytest

from outrider.testing import leak_check


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
