"""Places for calls: an origin has so many, and turns with others for more."""

from __future__ import annotations

import asyncio

import pytest

from outrider.errors import OverloadedError
from outrider.fair_work.places import FairPlaces
from outrider.fair_work.turns import Requester
from outrider.testing import eventually


async def test_an_origin_waits_for_its_own_calls_and_for_nobody_elses() -> None:
    turns, order, may_end = FairPlaces(2, 99), list[str](), asyncio.Event()

    async def ask(tenant: str, name: str) -> None:
        async with turns.held(Requester(tenant)):
            order.append(name)
            await may_end.wait()

    async with asyncio.TaskGroup() as group:
        flood = [group.create_task(ask("a", f"a{number}")) for number in range(5)]
        group.create_task(ask("b", "b0"))
        await eventually(lambda: order == ["a0", "a1", "b0"])
        flood[2].cancel()  # whose client left while it waited
        may_end.set()
    assert order == ["a0", "a1", "b0", "a3", "a4"]
    assert len(turns) == 0, "nothing is kept of tenants that ask for nothing"


async def test_so_many_calls_are_under_way_in_all() -> None:
    turns, order, may_end = FairPlaces(2, 3), list[str](), asyncio.Event()

    async def ask(tenant: str) -> None:
        async with turns.held(Requester(tenant)):
            order.append(tenant)
            await may_end.wait()

    async with asyncio.TaskGroup() as group:
        for tenant in "aaabbc":
            group.create_task(ask(tenant))
        await eventually(lambda: order == ["a", "a", "b"])
        may_end.set()
    assert sorted(order) == list("aaabbc") and len(turns) == 0


async def test_origins_and_their_clients_take_turns() -> None:
    turns, order, may_end = FairPlaces(9, 1), list[str](), asyncio.Event()

    async def ask(requester: Requester) -> None:
        async with turns.held(requester):
            order.append(requester.origin + requester.client)
            await may_end.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(ask(Requester("a", "1")))
        await eventually(lambda: order == ["a1"])
        for whose in (Requester("a", "2"), Requester("b"), Requester("b")):
            group.create_task(ask(whose))
        await asyncio.sleep(0)
        may_end.set()
    assert order.index("a2") <= 3 and order.index("b") <= 2
    assert order[:6].count("b") == 2 and len(turns) == 0


async def test_an_origin_that_waits_for_more_than_its_part_is_refused_and_others_are_not() -> None:
    turns, may_end = FairPlaces(1, 1, 6), asyncio.Event()

    async def ask(tenant: str) -> None:
        async with turns.held(Requester(tenant)):
            await may_end.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(ask("a"))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError) as refused:
            await ask("a")
        assert refused.value.retry_delay_ms
        for _ in range(3):
            group.create_task(ask("b"))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await ask("b")
        may_end.set()
    assert len(turns) == 0
    await ask("a")
