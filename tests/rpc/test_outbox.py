"""Order, bounds, closing, and producers that wait."""

from __future__ import annotations

import asyncio

import pytest

from outrider.errors import CancelledError, MalformedFrameError, OverloadedError
from outrider.rpc import Outbox
from outrider.testing import leak_check


async def test_a_full_outbox_refuses_and_keeps_what_it_has() -> None:
    outbox: Outbox[int] = Outbox(max_items=2)
    outbox.put_nowait(1)
    outbox.put_nowait(2)
    with pytest.raises(OverloadedError, match="does not read"):
        outbox.put_nowait(3)
    assert len(outbox) == 2
    assert await anext(outbox) == 1
    outbox.put_nowait(3)
    outbox.close()
    assert [item async for item in outbox] == [2, 3]


async def test_the_last_item_of_a_session_fits_into_a_full_outbox() -> None:
    outbox: Outbox[int] = Outbox(max_items=1)
    outbox.put_nowait(1)
    outbox.put_nowait(2, last=True)
    outbox.put_nowait(3, last=True)
    with pytest.raises(OverloadedError):
        outbox.put_nowait(4)
    outbox.close()
    with pytest.raises(CancelledError):
        outbox.put_nowait(5, last=True)
    assert [item async for item in outbox] == [1, 2, 3]


async def test_put_waits_for_room() -> None:
    async with leak_check():
        outbox: Outbox[int] = Outbox(max_items=1)

        async def produce(start: int) -> None:
            for number in range(start, start + 50):
                await outbox.put(number)

        producers = [asyncio.create_task(produce(start)) for start in (0, 100, 200)]
        seen = [await anext(outbox) for _ in range(150)]
        await asyncio.gather(*producers)
    for start in (0, 100, 200):
        assert [n for n in seen if start <= n < start + 50] == list(range(start, start + 50))


async def test_closing_wakes_waiting_producers_and_the_consumer() -> None:
    outbox: Outbox[int] = Outbox(max_items=1)
    outbox.put_nowait(1)
    producer = asyncio.create_task(outbox.put(2))
    await asyncio.sleep(0)
    outbox.close()
    outbox.close(MalformedFrameError("too late to matter"))
    with pytest.raises(CancelledError):
        await producer
    with pytest.raises(CancelledError):
        outbox.put_nowait(3)
    assert [item async for item in outbox] == [1]


async def test_closing_with_an_error_raises_it_after_the_items() -> None:
    outbox: Outbox[int] = Outbox()
    outbox.put_nowait(1)
    waiting = asyncio.create_task(_drain(outbox))
    await asyncio.sleep(0)
    outbox.close(MalformedFrameError("frame without session"))
    with pytest.raises(MalformedFrameError):
        await waiting


async def _drain(outbox: Outbox[int]) -> list[int]:
    return [item async for item in outbox]


async def test_a_cancelled_consumer_leaves_the_outbox_usable() -> None:
    outbox: Outbox[int] = Outbox()
    consumer = asyncio.create_task(_drain(outbox))
    await asyncio.sleep(0)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    outbox.put_nowait(7)
    assert await anext(outbox) == 7


def test_offers_are_refused_without_an_error() -> None:
    outbox: Outbox[int] = Outbox(max_items=1)
    assert outbox.offer(1)
    assert not outbox.offer(2), "it is full"
    outbox.close()
    assert not outbox.offer(3, last=True), "it is closed"
    assert not outbox.is_overrun


async def test_the_reserve_is_for_items_that_end_sessions() -> None:
    outbox: Outbox[int] = Outbox(2, 1)
    assert outbox.offer(1)
    assert outbox.offer(2)
    assert not outbox.offer(3)
    assert outbox.offer(4, last=True)
    assert len(outbox) == 3
    assert await anext(outbox) == 1
    assert not outbox.offer(5), "the reserve is still in use"
    assert [await anext(outbox), await anext(outbox)] == [2, 4]
    assert outbox.offer(6)


async def test_a_peer_that_exhausts_the_reserve_is_given_up() -> None:
    outbox: Outbox[int] = Outbox(1, 1)
    assert outbox.offer(1)
    assert outbox.offer(2, last=True)
    assert not outbox.offer(3, last=True)
    assert outbox.is_overrun
    assert len(outbox) == 0
    assert [item async for item in outbox] == []
