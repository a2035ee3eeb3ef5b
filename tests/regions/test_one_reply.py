"""One reply for a request with an idempotency key, whichever edges of a site are asked: each has a
host of its own, and the Redis that they share another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import pytest

from bench.faults.chats import ReferenceChat
from bench.harness.http_client import AnsweredError
from bench.regions.mesh import SECOND_SITE, RegionalMesh
from services.edge.chat.shared_replies import LEASE_S, RENEW_S
from tests.regions.conftest import CALL_MS, NUM_TOKENS, SharingMesh
from tests.regions.keyed_requests import Computed, KeyedRequest

pytestmark = [
    *(pytest.mark.hosts, pytest.mark.asyncio(loop_scope="session")),
    pytest.mark.timeout(600),
]
LEFT, OTHER = 1, 0
"""Edges: the one on SECOND_SITE, which is lost, and the other one."""
NUM_REQUESTS: Final = 8
_LIMIT_S: Final = 240.0


async def _power_lost(mesh: RegionalMesh) -> None:
    await mesh.lose(SECOND_SITE)


async def _cut_off(mesh: RegionalMesh) -> None:
    await mesh.hosts.cut(mesh.hosts.around(SECOND_SITE))


async def _mended(mesh: RegionalMesh) -> None:
    await mesh.hosts.mend(mesh.hosts.around(SECOND_SITE))


async def _brought_back(mesh: RegionalMesh) -> None:
    await mesh.bring_back(SECOND_SITE)


Step = Callable[[RegionalMesh], Awaitable[None]]
LOSSES: Final[Mapping[str, tuple[Step, Step]]] = {
    "power lost": (_power_lost, _brought_back),
    "cut off": (_cut_off, _mended),
}
"""What happens to the host, and what undoes it."""


@pytest.mark.parametrize("name", LOSSES)
async def test_replies_go_on_at_the_other_edge_when_an_edges_host_is_lost(
    sharing: SharingMesh, references: list[ReferenceChat], name: str
) -> None:
    mesh = sharing.mesh
    strike, undo = LOSSES[name]
    chosen = [references[number % len(references)] for number in range(NUM_REQUESTS)]
    requests = [KeyedRequest(mesh, it) for it in chosen]
    computed = Computed(mesh)
    await computed.begin()
    async with asyncio.timeout(_LIMIT_S):
        reading = [asyncio.create_task(it.read(LEFT)) for it in requests]
        await asyncio.gather(
            *(it.until(40, task) for it, task in zip(requests, reading, strict=True))
        )
        await strike(mesh)
        lost_at = time.monotonic()
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        had = [len(it.text) for it in requests]
        reading = [asyncio.create_task(it.read(OTHER)) for it in requests]
        await asyncio.gather(
            *(it.until(n + 1, task) for it, n, task in zip(requests, had, reading, strict=True))
        )
        pause_s = time.monotonic() - lost_at
        await asyncio.gather(*reading)
    for request in requests:
        request.check()
    begun, further = await computed.since()
    assert begun == NUM_REQUESTS, "each was begun once, and then continued"
    # Until another edge came for it, nobody knew that nobody reads it; and a piece was not saved.
    unread = NUM_REQUESTS * (pause_s + RENEW_S) * 1000 / CALL_MS
    whole = NUM_REQUESTS * (NUM_TOKENS - 1)
    assert further <= whole + unread
    assert pause_s < LEASE_S + 5.0
    await undo(mesh)
    # The edge that was away has the same replies for who asks there, and computes nothing.
    assert await asyncio.gather(*(it.whole(LEFT) for it in requests)) == [it.text for it in chosen]
    assert (await computed.since())[0] == NUM_REQUESTS


async def test_a_key_that_both_edges_are_asked_for_at_once_is_computed_once(
    sharing: SharingMesh, references: list[ReferenceChat]
) -> None:
    mesh = sharing.mesh
    chosen = [references[number % len(references)] for number in range(NUM_REQUESTS)]
    computed = Computed(mesh)
    await computed.begin()
    requests = [KeyedRequest(mesh, it) for it in chosen]
    async with asyncio.timeout(_LIMIT_S):
        answers = await asyncio.gather(
            *(it.whole(edge) for it in requests for edge in (OTHER, LEFT)), return_exceptions=True
        )
        for request, one, other in zip(requests, answers[::2], answers[1::2], strict=True):
            refused = [it for it in (one, other) if isinstance(it, AnsweredError)]
            assert [it.status for it in refused] == [409], "the newer request gets the reply"
            assert refused[0].fields["x-should-retry"] == "false"
            assert request.reference.text in (one, other)
        # Whole, it is there for whoever asks.
        for edge in (OTHER, LEFT):
            texts = await asyncio.gather(*(it.whole(edge) for it in requests))
            assert texts == [it.text for it in chosen]
    begun, further = await computed.since()
    assert begun == NUM_REQUESTS, "no prompt was computed twice"
    # What an edge has not had when it lets go is computed by the other one: a second of tokens at
    # most, on a machine that is not too busy.
    assert begun + further <= NUM_REQUESTS * (NUM_TOKENS + 1000 / CALL_MS)
