"""Watchers of prefix events get all of them, or are told that they did not."""

from __future__ import annotations

import asyncio

from outrider.engines.turn.base import BlocksCleared, BlocksRemoved, PrefixEvent
from outrider.engines.turn.prefix_hub import MAX_EVENTS, PrefixHub


def event(number: int) -> BlocksRemoved:
    return BlocksRemoved((number.to_bytes(4, "big"),))


async def watched(hub: PrefixHub) -> list[PrefixEvent]:
    return [it async for it in hub.watch()]


async def test_every_watcher_gets_every_event_until_the_end() -> None:
    hub = PrefixHub()
    watchers = [asyncio.create_task(watched(hub)) for _ in range(2)]
    await asyncio.sleep(0)
    for number in range(3):
        hub.tell(event(number))
    hub.close()
    assert await asyncio.gather(*watchers) == [[event(number) for number in range(3)]] * 2
    assert await watched(hub) == []


async def test_who_falls_behind_forgets_all_and_goes_on_from_there() -> None:
    hub = PrefixHub()
    watcher = asyncio.create_task(watched(hub))
    await asyncio.sleep(0)
    for number in range(MAX_EVENTS + 3):
        hub.tell(event(number))
    hub.close()
    told = await watcher
    assert told == [BlocksCleared(), event(MAX_EVENTS + 1), event(MAX_EVENTS + 2)]


async def test_a_watcher_that_is_full_still_ends() -> None:
    hub = PrefixHub()
    watcher = asyncio.create_task(watched(hub))
    await asyncio.sleep(0)
    for number in range(MAX_EVENTS + 1):
        hub.tell(event(number))
    hub.close()
    assert len(await watcher) == MAX_EVENTS
