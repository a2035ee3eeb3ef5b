"""What holds for every tier that has KV of prompts: static prefixes, other replicas, a Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from outrider.engines.fake import FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from outrider.v1 import inference_pb2
from services.inference.kv_peers.config import KvPeersConfig
from services.inference.prefix_store.config import PrefixStoreConfig
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.static_prefixes.prefixes import StaticPrefix
from tests.inference.harness import GatedEngine, Reply, Running, reference, running
from tests.redis_server import redis_server

BLOCK = FakeOptions().block_tokens
NUM_BLOCKS = 12
PROMPT = tuple(n % 25 + 1 for n in range(NUM_BLOCKS * BLOCK + 5))
SAMPLING = SamplingParams(max_tokens=8)
IDS = list(reference(PROMPT, SAMPLING).ids)
COMPUTED_SLOWLY: dict[str, Any] = {
    "kv_peers": KvPeersConfig(min_tokens=BLOCK, timeout_ms=20_000.0),
    "scheduler": SchedulerLimits(prefill_chunk_tokens=BLOCK, row_ms=1000.0),
}
"""A block at a time, so that what comes has a place; and slowly as the first guess has it, so that
fetching pays however slow this machine is."""


@dataclass(frozen=True)
class Filled:
    """A tier that has all blocks of the prompt."""

    counted_as: str
    """What comes from it, in outrider_kv_tokens."""
    friend: dict[str, Any]
    """What an OpenSession says that may use them."""
    stranger: dict[str, Any]
    """What one says that may not."""
    blocks_metric: str = ""
    """Of the blocks that were asked for; empty: nobody has to ask."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the replica that asks."""

    def has_answered(self, it: Running) -> bool:
        """Most blocks have come, or are known not to."""
        results = ("loaded", "missing")
        counts = [it.value(self.blocks_metric, result=result) or 0.0 for result in results]
        return not self.blocks_metric or max(counts) > NUM_BLOCKS / 2


@asynccontextmanager
async def static_prefixes() -> AsyncIterator[Filled]:
    prefix = StaticPrefix("all of it", ("acme",), PROMPT)
    tenants = ({"tenant": "acme"}, {"tenant": "initech"})
    yield Filled("device", *tenants, settings={"static": (prefix,)})


@asynccontextmanager
async def other_replica() -> AsyncIterator[Filled]:
    async with running(**COMPUTED_SLOWLY) as other:
        await ask(other)
        holder = inference_pb2.KvHolder(
            replica="other", address=f"127.0.0.1:{other.replica.port}", num_tokens=len(PROMPT)
        )
        friend = {"kv_holder": holder}
        stranger = friend | {"cache_salt": b"another group"}
        yield Filled("peer", friend, stranger, "outrider_kv_peer_blocks_total")


@asynccontextmanager
async def prefix_store() -> AsyncIterator[Filled]:
    metric = "outrider_kv_store_blocks_total"
    with redis_server() as server:
        store = PrefixStoreConfig(server.url, key="k" * 32, min_tokens=BLOCK)
        settings: dict[str, Any] = {"prefix_store": store}
        async with running(**COMPUTED_SLOWLY, **settings) as other:
            for _ in range(2):
                await ask(other, group_lasts=True)
            await eventually(lambda: other.value(metric, result="saved") == NUM_BLOCKS)
        friend = {"group_lasts": True}
        stranger = friend | {"cache_salt": b"another group"}
        yield Filled("redis", friend, stranger, metric, settings)


async def ask(it: Running, **fields: Any) -> Reply:
    peer = it.peer()
    await peer.open(1, PROMPT, SAMPLING, **fields)
    reply = await peer.finish(1)
    peer.call.cancel()
    assert reply.error is None and reply.ids == IDS
    return reply


@asynccontextmanager
async def asking(tier: Filled) -> AsyncIterator[tuple[Running, GatedEngine]]:
    """A replica that has nothing yet. Its engine waits from now on until the gate is open."""
    engine = GatedEngine()
    engine.gate.set()
    async with running(engine, is_alone=False, **COMPUTED_SLOWLY, **tier.settings) as it:
        engine.waiting.clear()
        engine.gate.clear()
        yield it, engine


@pytest.mark.parametrize("fill", [static_prefixes, other_replica, prefix_store])
class TestTier:
    async def test_it_brings_what_the_engine_would_have_computed(self, fill: Fill) -> None:
        async with fill() as tier, asking(tier) as (it, engine):
            peer = it.peer()
            await peer.open(1, PROMPT, SAMPLING, **tier.friend)
            await eventually(lambda: engine.waiting.is_set() and tier.has_answered(it))
            await eventually(lambda: not it.replica.tiers.num_transfers)
            engine.gate.set()
            reply = await peer.finish(1)
            peer.call.cancel()
            assert reply.error is None and reply.ids == IDS
            assert reply.cached_tokens > NUM_BLOCKS / 2 * BLOCK
            counted = it.value("outrider_kv_tokens_total", tier=tier.counted_as)
            assert counted is not None and counted >= reply.cached_tokens

    async def test_it_has_nothing_for_whom_it_is_not(self, fill: Fill) -> None:
        async with fill() as tier, asking(tier) as (it, engine):
            peer = it.peer()
            await peer.open(1, PROMPT, SAMPLING, **tier.stranger)
            await eventually(lambda: engine.waiting.is_set() and tier.has_answered(it))
            engine.gate.set()
            reply = await peer.finish(1)
            peer.call.cancel()
            assert reply.error is None and reply.ids == IDS and reply.cached_tokens == 0

    async def test_a_session_that_ends_meanwhile_leaves_nothing(self, fill: Fill) -> None:
        async with fill() as tier, asking(tier) as (it, engine):
            peer = it.peer()
            await peer.open(1, PROMPT, SAMPLING, **tier.friend)
            await eventually(lambda: engine.waiting.is_set() and tier.has_answered(it))
            await peer.cancel(1)
            engine.gate.set()
            await peer.finish(1)
            peer.call.cancel()
            await eventually(lambda: it.is_clean() and not it.replica.tiers.num_transfers)


Fill = Callable[[], AbstractAsyncContextManager[Filled]]
