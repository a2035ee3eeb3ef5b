"""A replica that has static prefixes hot before it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from outrider.engines.base import SequenceSlice
from outrider.engines.fake import FakeOptions
from outrider.errors import EngineError
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from services.inference.prefix_store.config import PrefixStoreConfig
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.static_prefixes.prefixes import StaticPrefix
from tests.engines.hooked import HookedEngine
from tests.inference.harness import GatedEngine, Reply, Running, reference, running
from tests.redis_server import redis_server

BLOCK = FakeOptions().block_tokens
NUM_TOKENS = 6 * BLOCK + 5
IDS = tuple(n % 25 + 1 for n in range(NUM_TOKENS))
EVERYBODYS = StaticPrefix("all", ("*",), IDS)
ACMES = StaticPrefix("acme", ("acme",), tuple(i + 30 for i in IDS))
SAMPLING = SamplingParams(max_tokens=8)


async def ask(it: Running, prompt: Sequence[int], tenant: str = "", salt: bytes = b"g") -> Reply:
    peer = it.peer()
    await peer.open(1, prompt, SAMPLING, tenant=tenant, cache_salt=salt)
    reply = await peer.finish(1)
    peer.call.cancel()
    assert reply.error is None and reply.ids == list(reference(prompt, SAMPLING).ids)
    return reply


async def test_the_first_chats_of_all_groups_find_it() -> None:
    async with running(static=(EVERYBODYS, ACMES)) as it:
        for number in range(4):
            reply = await ask(it, [*IDS, 30, 31, number], salt=b"group %d" % number)
            assert reply.cached_tokens == NUM_TOKENS
        assert it.num_busy_blocks == it.num_pinned_blocks == 2 * 7


async def test_only_named_tenants_find_theirs() -> None:
    async with running(static=(EVERYBODYS, ACMES)) as it:
        prompt = [*ACMES.ids, 30, 31]
        assert (await ask(it, prompt, "initech", salt=b"a")).cached_tokens == 0
        assert (await ask(it, prompt, "acme", salt=b"b")).cached_tokens == NUM_TOKENS
        assert (await ask(it, prompt, "", salt=b"c")).cached_tokens == 0


async def test_no_objective_holds_for_it() -> None:
    limits = SchedulerLimits(slo_ttft_high_ms=0.001, slo_ttft_medium_ms=0.001)
    async with running(static=(EVERYBODYS,), scheduler=limits) as it:
        assert it.replica.readiness()[0]


async def test_it_is_not_ready_before() -> None:
    engine = GatedEngine()
    starting = asyncio.create_task(_run_until_ready(engine))
    await asyncio.to_thread(engine.waiting.wait, 30)
    assert not starting.done()
    engine.gate.set()
    assert await starting == NUM_TOKENS


async def _run_until_ready(engine: GatedEngine) -> int:
    async with running(engine, static=(EVERYBODYS,)) as it:
        return (await ask(it, [*IDS, 30, 31])).cached_tokens


async def test_a_replica_that_cannot_compute_it_does_not_start() -> None:
    class Broken(HookedEngine):
        def before(self, slices: Sequence[SequenceSlice]) -> None:
            raise EngineError("no memory")

    with pytest.raises(EngineError, match="prefix all could not be computed: no memory"):
        async with running(Broken(), static=(EVERYBODYS,)) as it:
            assert it is None, "it started"


async def test_it_is_loaded_from_the_store_by_the_next_replica() -> None:
    """Slowly computed as the first guess has it, and a block at a time, so that loading pays."""
    with redis_server() as server:
        settings: dict[str, Any] = {
            "prefix_store": PrefixStoreConfig(server.url, key="k" * 32, min_tokens=2 * BLOCK),
            "scheduler": SchedulerLimits(prefill_chunk_tokens=BLOCK, row_ms=1000.0),
        }
        async with running(static=(EVERYBODYS,), **settings) as it:
            await eventually(lambda: _blocks(it, "saved") == 7)
        engine = GatedEngine()
        async with running(engine, static=(EVERYBODYS,), is_started=False, **settings) as it:
            starting = asyncio.create_task(it.replica.start())
            await eventually(lambda: _blocks(it, "loaded") >= 3)
            engine.gate.set()
            await starting
            assert (await ask(it, [*IDS, 30, 31])).cached_tokens == NUM_TOKENS


def _blocks(it: Running, result: str) -> float:
    return it.value("outrider_kv_store_blocks_total", result=result) or 0.0
