"""A clock on a real event loop, which is held."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from outrider.peers.stall_free_clock import StallFreeClock
from outrider.peers.stalls import StallPolicy

POLICY = StallPolicy(interval_s=0.01, max_gap_s=0.05, stop_s=0.1, settle_s=0.05, blame_s=0.1)


def hold(seconds: float) -> None:
    """What a long computation does to the loop."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


async def test_a_loop_that_is_held_holds_its_clock() -> None:
    clock = StallFreeClock(POLICY)
    clock.start()
    try:
        before = clock()
        hold(0.3)
        assert clock() == before
        assert clock.stalled_recently
        assert clock.stalled_s >= 0.3
    finally:
        clock.stop()
    assert clock() <= time.monotonic() - 0.3, "what was lost stays lost"


async def test_an_answer_that_came_while_the_loop_was_held_is_in_time() -> None:
    clock, loop = StallFreeClock(POLICY), asyncio.get_running_loop()
    clock.start()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        async with clock.timeout(0.2):
            loop.call_soon(theirs.send, b"answer")
            loop.call_soon(hold, 0.4)
            assert await loop.sock_recv(ours, 6) == b"answer"
    clock.stop()


async def test_what_gets_no_answer_ends() -> None:
    clock = StallFreeClock(POLICY)
    clock.start()
    try:
        with pytest.raises(TimeoutError):
            async with clock.timeout(0.05):
                await asyncio.Event().wait()
    finally:
        clock.stop()


async def test_all_who_wait_for_a_tick_go_on_with_the_next_one() -> None:
    clock, loop = StallFreeClock(POLICY), asyncio.get_running_loop()
    clock.start()
    try:
        waiting = [asyncio.create_task(clock.next_tick()) for _ in range(3)]
        began = loop.time()
        await asyncio.gather(*waiting)
        await clock.next_tick()
        assert loop.time() - began >= POLICY.interval_s, "the second comes an interval later"
    finally:
        clock.stop()
