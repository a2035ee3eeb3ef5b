"""The Redis of a site is cut off, from one edge or from all, or loses its power, and comes back: no
reply differs, nobody waits for it for long, and it is used again by processes that never ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import pytest

from bench.chaos.redis import Redis
from bench.faults.chats import LONG_PROMPT, ReferenceChat, make_reference_chats
from bench.harness.mesh import Service
from bench.regions.mesh import SECOND_SITE, RegionalMesh
from bench.regions.network import Way
from outrider.circuit_breaker import CircuitBreakerPolicy
from outrider.client import connect
from outrider.models.chat import Message
from outrider.tls import Role
from tests.regions.conftest import REDIS, TIMEOUT_MS, TOKENIZERS_TIMEOUT_MS, SharingMesh
from tests.regions.keyed_requests import Computed, KeyedRequest

pytestmark = [
    *(pytest.mark.hosts, pytest.mark.asyncio(loop_scope="session")),
    pytest.mark.timeout(600),
]
EDGES: Final = (0, 1)
NUM_REQUESTS: Final = 4
"""Of each edge."""
_BUSY_S: Final = 5.0
"""What a busy machine may take to make a first token, with all else."""
_LIMIT_S: Final = 60.0
_BACK_S: Final = CircuitBreakerPolicy().max_pause_s + _BUSY_S
"""A Redis that is back is tried within this time."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What is lost of the Redis."""

    ways: Callable[[RegionalMesh], list[Way]]
    has_power: bool = True


def _all(mesh: RegionalMesh) -> list[Way]:
    return mesh.hosts.around(REDIS)


LOSSES: Final[Mapping[str, Loss]] = {
    "cut off from one edge": Loss(lambda _: [(SECOND_SITE, REDIS), (REDIS, SECOND_SITE)]),
    "cut off from all": Loss(_all),
    "its answers lost": Loss(lambda mesh: [way for way in _all(mesh) if way[0] == REDIS]),
    "power lost": Loss(_all, has_power=False),
}


@asynccontextmanager
async def lost(mesh: RegionalMesh, redis: Redis, loss: Loss) -> AsyncIterator[None]:
    """It is so in the block. Where power is lost, all that the Redis knew is lost too, and nobody
    hears of it."""
    ways = loss.ways(mesh)
    await mesh.hosts.cut(ways)
    if not loss.has_power:
        redis.kill()
    try:
        yield
    finally:
        if not loss.has_power:
            redis.start()
        await mesh.hosts.mend(ways)


async def first_text_s(request: KeyedRequest, edge: int) -> float:
    """Seconds to the first text of its stream, which is read to the end."""
    began_at = time.monotonic()
    async with request.reading(edge, 1) as reading:
        took_s = time.monotonic() - began_at
        await reading
    request.check()
    return took_s


@pytest.mark.parametrize("name", LOSSES)
async def test_edges_answer_alone_until_their_redis_is_back(
    sharing: SharingMesh, references: list[ReferenceChat], short: list[ReferenceChat], name: str
) -> None:
    mesh, redis = sharing

    def requests(chosen: list[ReferenceChat]) -> list[tuple[KeyedRequest, int]]:
        return [
            (KeyedRequest(mesh, chosen[number % len(chosen)]), edge)
            for number in range(NUM_REQUESTS)
            for edge in EDGES
        ]

    pids = [edge.pid for edge in mesh.edges]
    under_way = requests(references)
    reading = [asyncio.create_task(it.read(edge)) for it, edge in under_way]
    await asyncio.gather(
        *(it.until(1, task) for (it, _), task in zip(under_way, reading, strict=True))
    )
    async with lost(mesh, redis, LOSSES[name]):
        # One after the other at first: each of them might wait, until the edge leaves Redis alone.
        waits_s = [await first_text_s(KeyedRequest(mesh, short[0]), edge) for edge in EDGES]
        waits_s += await asyncio.gather(*(first_text_s(*it) for it in requests(short)))
        # For the reply, and for the tenant's place.
        assert max(waits_s) < 2 * TIMEOUT_MS / 1000 + _BUSY_S
        both = KeyedRequest(mesh, short[0])
        if name != "cut off from one edge":
            texts = await asyncio.gather(*(both.whole(edge) for edge in EDGES))
            assert texts == [short[0].text] * len(EDGES), "each computed it alone"
    await asyncio.gather(*reading)
    for request, _ in under_way:
        request.check()
    await until_shared(mesh, short[0])
    assert [edge.pid for edge in mesh.edges] == pids


async def until_shared(mesh: RegionalMesh, reference: ReferenceChat) -> None:
    """Return once a reply that one edge had computed is the other's too, whichever is asked
    first. Raises TimeoutError."""
    computed = Computed(mesh)

    async def is_shared(first: int, second: int) -> bool:
        await computed.begin()
        request = KeyedRequest(mesh, reference)
        assert await request.whole(first) == reference.text
        assert await request.whole(second) == reference.text
        return (await computed.since())[0] == 1

    async with asyncio.timeout(_BACK_S):
        for first, second in (EDGES, EDGES[::-1]):
            while not await is_shared(first, second):
                pass


CACHE_UP: Final = "outrider_tokenization_shared_cache_up"
TEXTS_WRITTEN: Final = "outrider_tokenization_shared_cache_texts_total", "written"
STORE_UP: Final = "outrider_kv_store_up"
BLOCKS_SAVED: Final = "outrider_kv_store_blocks_total", "saved"


async def samples(services: Sequence[Service], name: str, label: str = "") -> list[float]:
    """The value of a metric at each of them, with that value of a label."""
    pages = await asyncio.gather(*(it.samples() for it in services))
    return [
        sum(it.value for it in page if it.name == name and label in ("", *it.labels.values()))
        for page in pages
    ]


class LongPrompts:
    """Chats of clients that send text alone, each with a prompt that no one sent before, twice: a
    tokenizer looks for it in the Redis, and the replica keeps its KV there."""

    def __init__(self, mesh: RegionalMesh) -> None:
        self._mesh = mesh
        self._num_asked = 0

    async def ask(self, num_prompts: int) -> float:
        """So many, one after the other; the most seconds that one took. Each is exact."""
        first, self._num_asked = self._num_asked, self._num_asked + num_prompts
        prompts = [f"Number {first + n}. {LONG_PROMPT}" for n in range(num_prompts)]
        references = await asyncio.to_thread(make_reference_chats, "fake", 4, prompts)
        longest_s = 0.0
        async with connect(
            self._mesh.urls[0], ca=self._mesh.ca, key=self._mesh.key, timeout_s=30.0
        ) as client:
            for reference in references:  # two of each prompt
                began_at = time.monotonic()
                message = Message("user", reference.prompt)
                asked = client.chat([message], sampling=reference.sampling, thin=True)
                async with asked as chat:
                    assert (await chat.result()).text == reference.text
                longest_s = max(longest_s, time.monotonic() - began_at)
        return longest_s

    async def until(self, is_so: Callable[[], Awaitable[bool]], limit_s: float) -> None:
        """Ask until that is so. Raises TimeoutError."""
        async with asyncio.timeout(limit_s):
            while not await is_so():
                await self.ask(1)


@pytest.mark.parametrize("name", [it for it in LOSSES if "edge" not in it])
async def test_tokenizers_and_replicas_do_without_their_redis_until_it_is_back(
    sharing: SharingMesh, name: str
) -> None:
    mesh, redis = sharing
    # Whichever of them is asked: a router may prefer another region's for a while.
    tokenizers = [it for it in mesh.made.services if it.role == Role.TOKENIZER]
    replicas = [it for it in mesh.made.services if it.role == Role.INFERENCE]
    prompts = LongPrompts(mesh)

    async def num_down() -> tuple[int, int]:
        ups = await samples(tokenizers, CACHE_UP), await samples(replicas, STORE_UP)
        return ups[0].count(0.0), ups[1].count(0.0)

    async def is_missed() -> bool:
        return all(await num_down())

    async def kept() -> tuple[float, float]:
        written = await samples(tokenizers, *TEXTS_WRITTEN)
        return sum(written), sum(await samples(replicas, *BLOCKS_SAVED))

    async def is_used(before: tuple[float, float]) -> bool:
        return all(now > then for now, then in zip(await kept(), before, strict=True))

    before = await kept()
    await prompts.until(lambda: is_used(before), _BACK_S + _LIMIT_S)
    async with lost(mesh, redis, LOSSES[name]):
        # The edge waits for a tenant's place, and the tokenizer for ids; a replica never does.
        limit_s = (TIMEOUT_MS + TOKENIZERS_TIMEOUT_MS) / 1000 + _BUSY_S
        assert await prompts.ask(1) < limit_s
        await prompts.until(is_missed, _LIMIT_S)
        assert await prompts.ask(2) < limit_s
    async with asyncio.timeout(_BACK_S):
        while await num_down() != (0, 0):  # nobody has to ask
            await asyncio.sleep(0.2)
    before = await kept()
    await prompts.until(lambda: is_used(before), _LIMIT_S)
