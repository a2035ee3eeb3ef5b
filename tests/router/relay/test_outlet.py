"""The bounded queue towards one stream."""

from __future__ import annotations

import asyncio

from outrider.testing import leak_check
from services.router.relay.outlet import Outlet


async def test_frames_come_out_in_order_and_then_the_end() -> None:
    outlet: Outlet[int] = Outlet(4, 0)
    assert outlet.offer(1)
    assert outlet.offer(2)
    outlet.close()
    assert not outlet.offer(3)
    assert [await outlet.take() for _ in range(4)] == [1, 2, None, None]
    assert not outlet.is_broken


async def test_the_reader_wakes_up() -> None:
    outlet: Outlet[int] = Outlet(4, 0)
    async with leak_check():
        taking = asyncio.create_task(outlet.take())
        await asyncio.sleep(0)
        outlet.offer(5)
        assert await taking == 5
        taking = asyncio.create_task(outlet.take())
        await asyncio.sleep(0)
        outlet.close()
        assert await taking is None


async def test_the_reserve_is_for_frames_that_end_sessions() -> None:
    outlet: Outlet[int] = Outlet(2, 1)
    assert outlet.offer(1)
    assert outlet.offer(2)
    assert not outlet.offer(3)
    assert outlet.offer(4, last=True)
    assert len(outlet) == 3
    assert await outlet.take() == 1
    assert not outlet.offer(5), "the reserve is still in use"
    assert [await outlet.take(), await outlet.take()] == [2, 4]
    assert outlet.offer(6)


async def test_a_peer_that_exhausts_the_reserve_is_given_up() -> None:
    outlet: Outlet[int] = Outlet(1, 1)
    assert outlet.offer(1)
    assert outlet.offer(2, last=True)
    assert not outlet.offer(3, last=True)
    assert outlet.is_broken
    assert len(outlet) == 0
    assert await outlet.take() is None
