"""An edge process is stopped (SIGSTOP) in the middle of a reply, its router is lost, and its client
reads on at another edge. Once it goes on (SIGCONT), the first edge opens its run of the chat again:
it is refused, and the client's reply is whole and exact."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.faults.chats import PROMPTS, make_reference_chats
from bench.harness.mesh import Service
from outrider.client import Chat, Committed, Message, ReconnectPolicy, Resumed, connect
from tests.e2e.two_edges import running

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

NUM_TOKENS = 250
LIMIT_S = 120.0


@contextmanager
def stopped(service: Service) -> Iterator[None]:
    """The process does nothing meanwhile."""
    service.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        service.signal(signal.SIGCONT)


async def read(chat: Chat, num_commits: int) -> bool:
    """Read so many commits; whether the chat was resumed meanwhile."""
    is_resumed = False
    async for event in chat:
        is_resumed = is_resumed or isinstance(event, Resumed)
        num_commits -= isinstance(event, Committed)
        if not num_commits:
            return is_resumed
    raise AssertionError("the reply ended too soon")


async def restart(router: Service) -> None:
    router.kill()
    router.spawn()
    await router.ready()


async def num_superseded(edge: Service) -> float:
    """Chats of an edge that ended because their clients read a later run."""
    return sum(
        it.value
        for it in await edge.samples()
        if it.name == "outrider_edge_chats_total" and it.labels["outcome"] == "DUPLICATE_SESSION"
    )


async def test_an_edge_that_was_stopped_does_not_take_a_chat_back() -> None:
    (reference, *_) = make_reference_chats("fake", NUM_TOKENS, PROMPTS[:1])
    asked = [Message("user", reference.prompt)]
    quick = ReconnectPolicy(attempt_timeout_s=1.0)
    async with asyncio.timeout(LIMIT_S), running("resumed-elsewhere") as fleet:
        first, second = fleet.edges
        others = [f"quic://{second.address}"]
        async with connect(
            f"quic://{first.address}", others=others, ca=fleet.ca, reconnect=quick
        ) as client:
            async with client.chat(asked, sampling=reference.sampling) as chat:
                await read(chat, 3)
                with stopped(first):
                    await restart(fleet.router)
                    while not await read(chat, 1):
                        pass
                while not await num_superseded(first):
                    await read(chat, 1)
                result = await chat.result()
    assert (result.ids, result.text) == (reference.ids, reference.text)
