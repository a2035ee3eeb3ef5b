"""Connections that wait for room: in order within an address, in turns between them, bounded."""

from __future__ import annotations

import asyncio

from services.edge.http.waiting_connections import WaitingConnections


def _turn() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


async def test_an_address_waits_in_order_and_addresses_take_turns() -> None:
    waiting = WaitingConnections(100)
    turns = {name: _turn() for name in ("a0", "a1", "a2", "b0", "b1")}
    for name, turn in turns.items():
        assert waiting.add(name[0], turn)
    order = []
    while waiting:
        waiting.wake()
        order += [name for name, turn in turns.items() if turn.done() and name not in order]
    assert order == ["a0", "b0", "a1", "b1", "a2"]


async def test_room_at_an_address_is_for_those_that_wait_there() -> None:
    waiting = WaitingConnections(100)
    other, first, second = _turn(), _turn(), _turn()
    waiting.add("a", other)
    waiting.add("b", first)
    waiting.add("b", second)
    waiting.wake("b")
    assert first.done() and not other.done() and not second.done()
    assert waiting.is_next("b", second) and not waiting.is_next("b", other)
    waiting.add("b", late := _turn(), is_first=True)
    waiting.wake("b")
    assert late.done() and not second.done()
    waiting.wake("c")
    assert other.done(), "nobody waits at c"


async def test_who_left_is_passed_over() -> None:
    waiting = WaitingConnections(100)
    gone, removed, there = _turn(), _turn(), _turn()
    for turn in (gone, removed, there):
        waiting.add("a", turn)
    gone.cancel()
    waiting.remove("a", removed)
    waiting.remove("a", removed)
    assert len(waiting) == 2
    waiting.wake("a")
    assert there.done() and not removed.done() and not waiting
    waiting.wake("a")


async def test_one_address_leaves_half_of_the_places_to_others() -> None:
    waiting = WaitingConnections(8)
    assert [waiting.add("a", _turn()) for _ in range(6)] == [True] * 4 + [False] * 2
    assert [waiting.add(name, _turn()) for name in "bcdef"] == [True] * 4 + [False]
    assert len(waiting) == 8 and waiting.of("a") == 4
    assert not WaitingConnections(0).add("a", _turn())
