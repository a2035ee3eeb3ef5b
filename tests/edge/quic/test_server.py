"""The edge's socket, real: what waits in it is read before any of it is looked at for long."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop
from aioquic.quic.connection import NetworkAddress

from services.edge.quic.server import FairServer

NUM_BULK = 150
"""More than event loops read in a turn, less than a socket holds by default."""


async def _looked_at(reported: list[BaseException], poison: bytes = b"") -> list[bytes]:
    """Data in the order in which they were looked at; all of it was sent before the loop ran.
    `poison` cannot be looked at; what the loop is told of it goes to `reported`."""
    loop, everything = asyncio.get_running_loop(), asyncio.Event()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    seen: list[bytes] = []

    def look(data: bytes, addr: NetworkAddress) -> None:
        seen.append(data)
        if len(seen) > NUM_BULK:
            everything.set()
        if data == poison:
            raise ValueError("poison")

    transport, server = await loop.create_datagram_endpoint(
        lambda: FairServer(look),
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
