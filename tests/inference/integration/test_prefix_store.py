"""KV of prompts over the restart of a replica, through a real Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import redis

from outrider.circuit_breaker import CircuitBreakerPolicy
from outrider.engines.fake import FakeOptions
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually
from outrider.v1 import inference_pb2
from services.inference.prefix_store.config import PrefixStoreConfig
from services.inference.prefix_store.opening import STORE_UP
from services.inference.prefix_store.sealing import PREFIX
from services.inference.prefix_store.tier import PrefixStoreTier
from services.inference.scheduler.limits import SchedulerLimits
from services.inference.streaming.wire import load_response
from tests.inference.harness import GatedEngine, Reply, Running, reference, running
from tests.redis_server import RedisServer, redis_server

KEY = "0123456789abcdef" * 2
BLOCK = FakeOptions().block_tokens
NUM_BLOCKS = 12
PROMPT = [n % 25 + 1 for n in range(NUM_BLOCKS * BLOCK + 5)]
SAMPLING = SamplingParams(max_tokens=8)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(autouse=True)
def empty(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port) as client:
        client.flushall()
        yield client


def settings(server: RedisServer, **changes: Any) -> dict[str, Any]:
    """Prompts are computed a block at a time, so that what is loaded comes in between; and slowly
    as the first guess has it, so that loading pays however slow this machine is."""
    store = PrefixStoreConfig(server.url, key=KEY, min_tokens=2 * BLOCK)
    limits = SchedulerLimits(prefill_chunk_tokens=BLOCK, row_ms=1000.0)
    return {"prefix_store": store, "scheduler": limits} | changes


def counted(it: Running, result: str) -> float:
    """Blocks of which this became."""
    return it.value("outrider_kv_store_blocks_total", result=result) or 0.0


def by_tier(it: Running) -> dict[str, float]:
    """Prompt tokens of sessions that have ended, by where their KV came from."""
    tiers = ("device", "peer", "redis", "computed")
    return {tier: it.value("outrider_kv_tokens_total", tier=tier) or 0.0 for tier in tiers}


def is_settled(it: Running) -> bool:
    """Nothing more will come, nor go."""
    return not it.replica.tiers.num_transfers


def is_loaded(it: Running) -> bool:
    """The first blocks are left to the engine."""
    return counted(it, "loaded") > NUM_BLOCKS / 2 and is_settled(it)


def moved(it: Running, direction: str) -> tuple[float, float]:
    """Bytes that went this way, and the number of times."""
    num_bytes = it.value("outrider_kv_transferred_bytes_total", direction=direction)
    assert num_bytes is not None, "there from the start"
    return num_bytes, it.value("outrider_kv_transfer_seconds_count", direction=direction) or 0.0


async def ask(it: Running, **fields: Any) -> Reply:
    """One session, from its open to its end."""
    peer = it.peer()
    await peer.open(1, PROMPT, SAMPLING, **({"group_lasts": True} | fields))
    reply = await peer.finish(1)
    peer.call.cancel()
    assert reply.error is None and reply.ids == list(reference(PROMPT, SAMPLING).ids)
    return reply


async def fill(server: RedisServer) -> None:
    """A replica stores what two sessions begin with, and goes."""
    async with running(**settings(server)) as it:
        await ask(it)
        await ask(it)
        await eventually(lambda: counted(it, "saved") == NUM_BLOCKS)
        num_bytes, num_times = moved(it, "save")
        assert num_bytes > NUM_BLOCKS * 100 and num_times >= NUM_BLOCKS / 4


async def ask_anew(
    server: RedisServer,
    has_come: Callable[[Running], bool],
    told: list[inference_pb2.WatchLoadResponse] | None = None,
    **fields: Any,
) -> Reply:
    """A new replica, whose first engine call lasts until `has_come`; and what it has `told` routers
    in the end."""
    engine = GatedEngine()
    async with running(engine, **settings(server)) as it:
        peer = it.peer()
        await peer.open(1, PROMPT, SAMPLING, **({"group_lasts": True} | fields))
        await eventually(lambda: has_come(it))
        engine.gate.set()
        reply = await peer.finish(1)
        peer.call.cancel()
        assert reply.error is None and reply.ids == list(reference(PROMPT, SAMPLING).ids)
        assert by_tier(it) == {
            "device": 0,
            "peer": 0,
            "redis": reply.cached_tokens,
            "computed": len(PROMPT) - reply.cached_tokens,
        }
        if told is not None:
            report = load_response(it.replica.scheduler.load(), it.replica.tiers.counts)
            told.append(report)
            failures = it.value("outrider_kv_store_failures_total") or 0.0
            assert failures == report.kv.store_failures
            is_open = failures >= CircuitBreakerPolicy().max_failures
            assert it.value(STORE_UP) == float(not is_open)
        assert (moved(it, "load")[0] > 0) == bool(counted(it, "loaded") + counted(it, "refused"))
        return reply


def names_in(client: redis.Redis) -> set[bytes]:
    return set(cast("list[bytes]", client.keys()))


async def test_what_two_sessions_begin_with_outlives_the_replica(
    server: RedisServer, empty: redis.Redis
) -> None:
    await fill(server)
    assert empty.dbsize() == NUM_BLOCKS
    told: list[inference_pb2.WatchLoadResponse] = []
    reply = await ask_anew(server, is_loaded, told)
    assert NUM_BLOCKS / 2 < reply.cached_tokens / BLOCK < NUM_BLOCKS
    kv = told[0].kv
    assert (kv.prompt_tokens, kv.pool_tokens) == (len(PROMPT), 0)
    assert kv.store_tokens == reply.cached_tokens and kv.sync_bytes > 0 == kv.store_failures


async def test_what_one_session_alone_has_is_not_stored(
    server: RedisServer, empty: redis.Redis
) -> None:
    async with running(**settings(server)) as it:
        await ask(it)
        await ask(it, cache_salt=b"another group")
        await ask(it, group_lasts=False)
        assert is_settled(it)
    assert empty.dbsize() == 0


async def test_groups_find_nothing_of_each_other(server: RedisServer, empty: redis.Redis) -> None:
    await fill(server)
    names = names_in(empty)
    other = await ask_anew(
        server, lambda it: counted(it, "missing") == NUM_BLOCKS, cache_salt=b"another group"
    )
    assert other.cached_tokens == 0
    assert names_in(empty) == names
    async with running(**settings(server)) as it:
        await ask(it, cache_salt=b"another group")
        await ask(it, cache_salt=b"another group")
        await eventually(lambda: counted(it, "saved") == NUM_BLOCKS)
    assert len(names_in(empty) - names) == NUM_BLOCKS, "the same prompt under other names"
    assert all(name.startswith(PREFIX) for name in names_in(empty))


LIES = ("garbage", "swapped", "cut", "long", "nothing", "list")


def lie(client: redis.Redis, how: str) -> None:
    """Have something else in the place of every entry."""
    names = sorted(names_in(client))
    values = [bytes(value) for value in cast("list[bytes]", client.mget(names))]
    for name, value, other in zip(names, values, [*values[1:], values[0]], strict=True):
        lies = {
            "garbage": b"\0" * 500,
            "swapped": other,
            "cut": value[:-1],
            "long": value + bytes(1 << 20),
            "nothing": b"",
        }
        client.delete(name)
        if how == "list":
            client.rpush(name, value)
        else:
            client.set(name, lies[how])


@pytest.mark.parametrize("how", LIES)
async def test_what_lies_is_not_believed_and_replaced_by_who_finds_it_out(
    server: RedisServer, empty: redis.Redis, how: str
) -> None:
    await fill(server)
    lie(empty, how)
    what = "missing" if how in ("nothing", "list") else "refused"
    engine = GatedEngine()
    async with running(engine, **settings(server)) as it:
        peer = it.peer()
        await peer.open(1, PROMPT, SAMPLING, group_lasts=True)
        await eventually(lambda: counted(it, what) > NUM_BLOCKS / 2 and is_settled(it))
        num_lies = counted(it, what)
        engine.gate.set()
        reply = await peer.finish(1)
        peer.call.cancel()
        assert reply.ids == list(reference(PROMPT, SAMPLING).ids) and reply.cached_tokens == 0
        assert counted(it, "saved") == 0, "one prompt alone had it"
        await ask(it)
        await eventually(lambda: counted(it, "saved") == num_lies and is_settled(it))
        (store,) = (tier for tier in it.replica.tiers if isinstance(tier, PrefixStoreTier))
        assert not len(store._unusable)
    reply = await ask_anew(server, is_loaded)
    assert reply.cached_tokens > NUM_BLOCKS / 2 * BLOCK


async def test_gaps_are_computed(server: RedisServer, empty: redis.Redis) -> None:
    await fill(server)
    empty.delete(*sorted(names_in(empty))[::2])
    reply = await ask_anew(server, lambda it: counted(it, "loaded") > 0 and is_settled(it))
    assert 0 < reply.cached_tokens <= NUM_BLOCKS // 2 * BLOCK


async def test_a_store_that_is_gone_costs_nothing_but_its_prefixes() -> None:
    with redis_server() as server:
        await fill(server)
        server.kill()
        told: list[inference_pb2.WatchLoadResponse] = []
        reply = await ask_anew(server, lambda it: counted(it, "missing") == NUM_BLOCKS, told=told)
        assert reply.cached_tokens == 0
        assert told[0].kv.store_failures > 0 and told[0].kv.store_tokens == 0


async def test_a_session_that_ends_while_it_is_loaded_leaves_nothing(server: RedisServer) -> None:
    await fill(server)
    engine = GatedEngine()
    async with running(engine, **settings(server)) as it:
        peer = it.peer()
        await peer.open(1, PROMPT, SAMPLING, group_lasts=True)
        await eventually(lambda: is_loaded(it))
        await peer.cancel(1)
        engine.gate.set()
        await peer.finish(1)
        peer.call.cancel()
