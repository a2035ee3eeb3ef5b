"""A real Redis that is killed, full or slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
import redis
import uvloop

from outrider.circuit_breaker import CircuitBreakerPolicy
from outrider.errors import ConfigError
from outrider.redis_settings import RedisAddress
from outrider.testing import eventually, free_tcp_port
from services.inference.prefix_store.store import RedisStore, connect
from tests.forgetful_relay import ForgetfulRelay, forgetful_relay
from tests.redis_server import RedisServer, redis_server

MAX_BYTES = 1_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@asynccontextmanager
async def store_at(
    url: str, *, pause_s: float = 0.0, on_asked: Callable[[bool], None] = lambda _: None
) -> AsyncIterator[RedisStore]:
    breaker = CircuitBreakerPolicy(first_pause_s=pause_s)
    client = connect(RedisAddress(url), 5.0)
    store = RedisStore(
        client,
        timeout_s=5.0,
        ttl_s=100,
        max_value_bytes=MAX_BYTES,
        breaker=breaker,
        on_asked=on_asked,
    )
    try:
        yield store
    finally:
        await store.close()


async def test_what_was_put_is_there_and_expires(server: RedisServer) -> None:
    async with store_at(server.url) as store:
        assert await store.put([(b"a", b"1"), (b"b", b"2" * 1_000_000)])
        assert await store.present([b"a", b"x", b"b"]) == [True, False, True]
        assert await store.fetch([b"b", b"x"]) == [b"2" * 1_000_000, None]
    with redis.Redis(port=server.port) as client:
        assert 0 < client.ttl("a") <= 100


async def test_of_what_is_no_entry_so_much_is_read(server: RedisServer) -> None:
    async with store_at(server.url) as store:
        assert await store.put([(b"most", b"1" * MAX_BYTES)])
        with redis.Redis(port=server.port) as client:
            client.set("huge", bytes(64 << 20))
            client.set("empty", b"")
            client.rpush("list", b"1")
            assert await store.fetch([b"huge", b"most", b"empty", b"x"]) == [
                *(bytes(MAX_BYTES), b"1" * MAX_BYTES),
                *(None, None),
            ]
            assert await store.fetch([b"most", b"list"]) == [None, None]
            assert await store.fetch([b"most"]) == [b"1" * MAX_BYTES]
            assert await store.put([(b"list", b"1"), (b"empty", b"2")])
            assert await store.fetch([b"list", b"empty"]) == [b"1", b"2"]
            client.flushall()
        assert store.num_failures == 0


async def test_a_full_redis_refuses_and_serves_what_it_has(server: RedisServer) -> None:
    async with store_at(server.url) as store:
        assert await store.put([(b"kept", b"1")])
        with redis.Redis(port=server.port) as client:
            client.config_set("maxmemory", 1)
            try:
                assert not await store.put([(b"more", b"1")])
                assert await store.fetch([b"kept", b"more"]) == [b"1", None]
            finally:
                client.config_set("maxmemory", 0)
        assert store.num_failures == 1


async def test_a_redis_that_dies_has_nothing_until_it_is_back() -> None:
    with redis_server() as server:
        async with store_at(server.url) as store:
            assert await store.put([(b"a", b"1")])
            server.kill()
            for _ in range(5):
                assert await store.fetch([b"a"]) is None
            assert await store.present([b"a"]) is None
            assert not await store.put([(b"a", b"1")])
            server.start()
            assert await store.put([(b"a", b"2")])
            assert await store.fetch([b"a"]) == [b"2"]


async def test_a_redis_that_is_back_is_noticed_though_nobody_needs_it() -> None:
    asked: list[bool] = []
    with redis_server() as server:
        async with store_at(server.url, on_asked=asked.append) as store:
            assert await store.put([(b"a", b"1")])
            server.kill()
            for _ in range(CircuitBreakerPolicy().max_failures):
                assert await store.fetch([b"a"]) is None
            assert asked == [True, True, True, False]
            server.start()
            await eventually(lambda: asked[-1])
        with redis.Redis(port=server.port) as client:
            assert not client.keys(), "to ask is not to write"


async def test_one_that_does_not_answer_costs_a_bounded_wait_and_then_none() -> None:
    accepted = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    client = connect(RedisAddress(f"redis://127.0.0.1:{port}/0"), 5.0)
    breaker = CircuitBreakerPolicy(max_failures=2, first_pause_s=1000.0, max_pause_s=1000.0)
    store = RedisStore(
        client, timeout_s=0.05, ttl_s=100, max_value_bytes=MAX_BYTES, breaker=breaker
    )
    assert await store.fetch([b"a"]) is None
    assert accepted.is_set()
    assert await store.fetch([b"a"]) is None
    num_failures = store.num_failures
    assert await store.fetch([b"a"]) is None
    assert store.num_failures == num_failures == 2, "the breaker is open: it was not asked"
    await store.close()
    listener.close()
    await listener.wait_closed()


async def test_a_cluster_of_which_no_node_is_there_has_nothing_and_is_left_alone() -> None:
    address = RedisAddress(f"redis://127.0.0.1:{free_tcp_port()}")
    breaker = CircuitBreakerPolicy(max_failures=2, first_pause_s=1000.0, max_pause_s=1000.0)
    client = connect(address, 5.0, is_cluster=True)
    store = RedisStore(client, timeout_s=5.0, ttl_s=100, max_value_bytes=MAX_BYTES, breaker=breaker)
    assert await store.present([b"a"]) is None
    assert await store.fetch([b"a"]) is None
    assert not await store.put([(b"a", b"1")])
    assert store.num_failures == 2, "the breaker is open: it was not asked"
    await store.close()


def test_an_address_that_is_none_is_said() -> None:
    with pytest.raises(ConfigError, match=r"prefix_store\.url"):
        connect(RedisAddress("http://nowhere"), 1.0)
    with pytest.raises(ConfigError, match="database 0"):
        connect(RedisAddress("redis://nowhere/1"), 1.0, is_cluster=True)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("is_told", [True, False], ids=["reset", "forgotten"])
def test_connections_that_are_dead_are_made_anew(
    new_loop: Callable[[], asyncio.AbstractEventLoop], is_told: bool, server: RedisServer
) -> None:
    async def ask(relay: ForgetfulRelay) -> None:
        client = connect(RedisAddress(f"redis://127.0.0.1:{relay.port}/0"), 0.5)
        store = RedisStore(client, timeout_s=0.5, ttl_s=100, max_value_bytes=MAX_BYTES)
        assert await store.put([(b"a", b"1")])
        if is_told:
            relay.reset()
            await asyncio.sleep(0.05)  # until the loop has seen it
            assert await store.fetch([b"a"]) == [b"1"]
            assert store.num_failures == 0
        else:
            relay.forget()
            assert await store.fetch([b"a"]) is None
            assert await store.fetch([b"a"]) == [b"1"]
            assert store.num_failures == 1
        await store.close()

    with forgetful_relay(server.port) as relay, asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(ask(relay))
