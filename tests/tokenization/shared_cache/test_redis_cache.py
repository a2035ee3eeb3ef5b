"""Through a real Redis, which is killed."""

from __future__ import annotations

import socket
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import redis
from structlog.types import EventDict

from outrider.circuit_breaker import CircuitBreakerPolicy
from outrider.redis_settings import RedisAddress
from outrider.testing import eventually, free_tcp_port
from outrider.tokenization.shared_cache.entries import Entries
from outrider.tokenization.shared_cache.redis_cache import (
    RedisStore,
    RedisTokenCache,
    SharedCachePolicy,
    connect,
)
from tests.forgetful_relay import forgetful_relay
from tests.redis_server import RedisServer, redis_server

IDS = array("I", range(100))
TEXT = "a text of some length"
POLICY = SharedCachePolicy(
    breaker=CircuitBreakerPolicy(max_failures=2, first_pause_s=0.0, max_pause_s=0.0)
)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@contextmanager
def a_process(
    url: str, policy: SharedCachePolicy = POLICY
) -> Iterator[tuple[RedisStore, RedisTokenCache]]:
    """What a process has: its own connections, breaker and writer."""
    store = RedisStore(connect(RedisAddress(url), 1.0, 4), policy)
    try:
        yield store, RedisTokenCache(store, Entries("secret", bytes(32), 1000), min_chars=10)
    finally:
        store.close()


def is_open(store: RedisStore) -> bool:
    return store.stats.is_open


async def test_what_one_process_knows_another_finds(server: RedisServer) -> None:
    with a_process(server.url) as (store, one), a_process(server.url) as (_, other):
        one.put(TEXT, IDS, b"salt", "backend")
        one.put("short", IDS, b"salt", "backend")
        await eventually(lambda: store.stats.num_written == 1)
        found = other.get([TEXT, "unknown " + TEXT, "short"], b"salt", "backend")
        assert found == [IDS, None, None]
        assert other.get([TEXT], b"another", "backend") == [None]
        assert other.get([TEXT], b"salt", "another backend") == [None]


async def test_what_nobody_with_the_key_wrote_is_not_used(server: RedisServer) -> None:
    with a_process(server.url) as (store, tokens):
        tokens.put(TEXT, IDS, b"", "backend")
        await eventually(lambda: store.stats.num_written == 1)
        with redis.Redis.from_url(server.url) as client:
            (name,) = client.keys("*")
            assert 0 < client.ttl(name) <= POLICY.ttl_s
            client.set(name, b"x" * 50)
        assert tokens.get([TEXT], b"", "backend") == [None]
        assert store.stats.num_damaged == 1


async def test_texts_are_encoded_while_redis_is_dead_and_found_when_it_is_back(
    server: RedisServer,
) -> None:
    with a_process(server.url) as (store, tokens):
        tokens.put(TEXT, IDS, b"", "backend")
        await eventually(lambda: store.stats.num_written == 1)
        server.kill()
        for _ in range(POLICY.breaker.max_failures):
            assert tokens.get([TEXT], b"", "backend") == [None]
        assert is_open(store)
        tokens.put(TEXT, IDS, b"", "backend")
        assert store.stats.num_dropped == 1, "nobody waits to write either"
        server.start()
        assert tokens.get([TEXT], b"", "backend") == [None], "it has forgotten"
        assert not is_open(store)
        tokens.put(TEXT, IDS, b"", "backend")
        await eventually(lambda: store.stats.num_written == 2)
        assert tokens.get([TEXT], b"", "backend") == [IDS]


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_redis_that_is_back_is_noticed_though_nobody_looks_anything_up(
    server: RedisServer, refuses: bool
) -> None:
    with a_process(server.url) as (store, tokens):
        server.kill()
        for _ in range(POLICY.breaker.max_failures):
            assert tokens.get([TEXT], b"", "backend") == [None]
        assert is_open(store)
        server.start()
        if refuses:
            with redis.Redis.from_url(server.url) as client:
                client.execute_command("ACL", "SETUSER", "default", "-mget")
        await eventually(lambda: not is_open(store))


@pytest.mark.parametrize("is_told", [True, False], ids=["reset", "forgotten"])
def test_connections_that_are_dead_are_made_anew(is_told: bool, server: RedisServer) -> None:
    with forgetful_relay(server.port) as relay:
        store = RedisStore(
            connect(RedisAddress(f"redis://127.0.0.1:{relay.port}/0"), 0.5, 1), POLICY
        )
        assert store.read([b"a"]) == [None] and store.stats.num_failures == 0
        if is_told:
            relay.reset()
        else:
            relay.forget()
            store.read([b"a"])
        assert store.stats.num_failures == (not is_told)
        with redis.Redis(port=server.port) as client:
            client.set("a", "1")
        assert store.read([b"a"]) == [b"1"]
        store.close()


def test_nobody_is_asked_while_the_breaker_is_open() -> None:
    policy = replace(POLICY, breaker=CircuitBreakerPolicy(max_failures=1, first_pause_s=3600.0))
    with a_process(f"redis://127.0.0.1:{free_tcp_port()}/0", policy) as (store, tokens):
        for _ in range(5):
            assert tokens.get([TEXT], b"", "backend") == [None]
        assert (store.stats.num_asked, store.stats.num_skipped) == (1, 4)


def test_a_redis_that_does_not_answer_is_waited_for_no_longer_than_the_timeout(
    logs: list[EventDict],
) -> None:
    policy = replace(POLICY, breaker=CircuitBreakerPolicy(max_failures=1))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        client = connect(RedisAddress(url), 0.005, 2)
        waits = client.connection_pool.connection_kwargs
        assert waits["socket_timeout"] == waits["socket_connect_timeout"] == 0.005
        store = RedisStore(client, policy)
        tokens = RedisTokenCache(store, Entries("secret", bytes(32), 1000), min_chars=10)
        assert tokens.get([TEXT], b"", "backend") == [None]
        store.close()
    assert store.stats.num_failures == 1
    (told,) = [entry for entry in logs if entry["event"] == "shared_tokens_unreachable"]
    assert told["reason"] == "TimeoutError", "it was reached, and did not answer in time"
