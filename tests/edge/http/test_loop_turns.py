"""Connections that take turns at the event loop, and what their work is charged to."""

from __future__ import annotations

import asyncio
import time

import pytest

from outrider.testing import eventually
from services.edge.http.loop_turns import LoopTurns, Meter
from services.edge.limits.fair_queue import LoopShare, LoopUses

HALF = LoopShare(0.5, 0.02)


def turns(uses: LoopUses | None = None, max_connections: int = 1000) -> LoopTurns:
    return LoopTurns(LoopUses(HALF) if uses is None else uses, max_connections)


async def test_who_is_alone_goes_on_at_once() -> None:
    queue, meter = turns(), Meter("a")
    turn = queue.take(meter)
    with pytest.raises(StopIteration):
        turn.send(None)
    assert not queue.is_waiting


async def test_addresses_take_turns_and_connections_within_them() -> None:
    queue, order = turns(), []

    async def go(name: str, meter: Meter) -> None:
        await queue.take(meter)
        order.append(name)

    many = [asyncio.create_task(go(f"many{n}", Meter("many"))) for n in range(50)]
    one = asyncio.create_task(go("one", Meter("one")))
    await asyncio.gather(*many, one)
    assert order.index("one") < 10, "it does not wait for all fifty"
    assert [name for name in order if name != "one"] == [f"many{n}" for n in range(50)]
    assert not queue.is_waiting


async def test_an_address_beyond_its_share_waits_while_others_are_there() -> None:
    uses = LoopUses(HALF)
    queue, greedy, modest = turns(uses), Meter("greedy"), Meter("modest")
    await queue.take(modest)
    modest.unbilled_s = 0.0001
    queue.bill(modest)
    greedy.unbilled_s = 0.03
    held = asyncio.create_task(queue.take(greedy))
    await asyncio.sleep(0)
    await queue.take(modest)
    assert not held.done() and uses.free_at("greedy") > 0
    await held
    assert time.perf_counter() >= uses.free_at("greedy")


async def test_who_gives_up_waiting_takes_nobodys_turn() -> None:
    queue = turns(max_connections=10)
    for _ in range(100):
        waiting = [asyncio.create_task(queue.take(Meter("a"))) for _ in range(10)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    await queue.take(Meter("a"))
    await eventually(lambda: not queue.is_waiting)
