"""The edge's socket, real: what waits in it is read before any of it is looked at for long."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import uvloop
from aioquic.quic.connection import NetworkAddress

from services.edge.quic.server import FairServer, Payer
from services.edge.quic.turns import Share

NUM_BULK = 150
"""More than event loops read in a turn, less than a socket holds by default."""


async def _looked_at(reported: list[BaseException], poison: bytes = b"") -> list[bytes]:
    """Data in the order in which they were looked at; all of it was sent before the loop ran.
    `poison` cannot be looked at; what the loop is told of it goes to `reported`."""
    loop, everything = asyncio.get_running_loop(), asyncio.Event()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    seen: list[bytes] = []

    def look(data: bytes, addr: NetworkAddress) -> Payer | None:
        seen.append(data)
        if len(seen) > NUM_BULK:
            everything.set()
        if data == poison:
            raise ValueError("poison")
        return None

    transport, server = await loop.create_datagram_endpoint(
        lambda: FairServer(look, str, Share()),
        local_addr=("127.0.0.1", 0),
    )
    address = transport.get_extra_info("sockname")
    with (
        socket.socket(type=socket.SOCK_DGRAM) as bulk,
        socket.socket(type=socket.SOCK_DGRAM) as chat,
    ):
        for number in range(NUM_BULK):
            bulk.sendto(b"%d" % number, address)
        chat.sendto(b"hello", address)
        await everything.wait()
    server.close()
    await asyncio.sleep(0)  # the loop tells the server that its socket is closed
    assert server.num_dropped == 0
    return seen


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_question_behind_a_long_prompt_does_not_wait_for_it(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        seen = runner.run(_looked_at([]))
    assert seen.index(b"hello") <= 2
    seen.remove(b"hello")
    assert seen == [b"%d" % number for number in range(NUM_BULK)]


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_datagram_that_cannot_be_looked_at_holds_up_nobody(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    reported: list[BaseException] = []
    with asyncio.Runner(loop_factory=new_loop) as runner:
        seen = runner.run(_looked_at(reported, poison=b"7"))
    assert len(seen) == NUM_BULK + 1
    assert [str(error) for error in reported] == ["poison"]


@dataclass
class Costly:
    """Whose datagrams take long."""

    is_proven: bool
    unpaid_s: float = 0.0


async def _resting(*, is_proven: bool) -> tuple[list[bytes], float]:
    """What was looked at before a datagram from elsewhere, and when the last one was, seconds
    after the first; each of ten takes 10 ms of 20 that may be used at once, and half of a second
    afterwards."""
    loop, everything = asyncio.get_running_loop(), asyncio.Event()
    seen: list[bytes] = []
    costly = Costly(is_proven)

    def look(data: bytes, addr: NetworkAddress) -> Payer:
        seen.append(data)
        until = time.thread_time() + (0.0 if data == b"hello" else 0.01)
        while time.thread_time() < until:
            pass
        if len(seen) > 10:
            everything.set()
        return costly

    transport, server = await loop.create_datagram_endpoint(
        lambda: FairServer(look, str, Share(0.5, 0.02)), local_addr=("127.0.0.1", 0)
    )
    began = loop.time()
    with (
        socket.socket(type=socket.SOCK_DGRAM) as bulk,
        socket.socket(type=socket.SOCK_DGRAM) as chat,
    ):
        chat.bind(("127.0.0.2", 0))
        server._turns.spend("127.0.0.2", 0.0, time.perf_counter())
        for number in range(10):
            bulk.sendto(b"%d" % number, transport.get_extra_info("sockname"))
        chat.sendto(b"hello", transport.get_extra_info("sockname"))
        await everything.wait()
    server.close()
    await asyncio.sleep(0)
    return seen, loop.time() - began


async def test_an_address_that_has_used_its_share_up_waits_and_loses_nothing() -> None:
    seen, took_s = await _resting(is_proven=True)
    assert sorted(seen) == sorted([b"hello", *(b"%d" % number for number in range(10))])
    assert took_s >= 0.12, "10 datagrams of 10 ms, of which 20 ms at once"


async def test_nobody_uses_up_the_share_of_an_address_that_may_be_forged() -> None:
    seen, _ = await _resting(is_proven=False)
    assert len(seen) == 11
