"""Limits that several edges hold together through a real Redis, and what they do without it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis

from outrider.errors import ConfigError, OutriderError, RateLimitedError
from outrider.testing import eventually
from services.edge.access import shared_limits
from services.edge.access.config import SharedLimitsConfig
from services.edge.access.identity import Identity
from services.edge.access.limiter import Allowance, Limiter
from services.edge.access.limits import Limited, TenantLimits
from services.edge.access.shared_limits import (
    SharedAnswer,
    SharedAsk,
    SharedLimits,
    open_shared_limits,
)
from tests.forgetful_relay import forgetful_relay
from tests.redis_server import RedisServer, redis_server

PATIENCE_MS = 5000.0
"""Long enough on a busy machine; a test about lateness names its own."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@asynccontextmanager
async def edge(server: RedisServer, timeout_ms: float = PATIENCE_MS) -> AsyncIterator[Limiter]:
    """The limiter of an edge whose own clock stands still."""
    shared = open_shared_limits(SharedLimitsConfig(server.url, timeout_ms=timeout_ms))
    assert shared is not None
    limiter = Limiter(lambda: 0.0)
    limiter.share(shared)
    try:
        yield limiter
    finally:
        await shared.close()


async def asked(chat: Allowance, num_tokens: int = 0) -> OutriderError | None:
    told: asyncio.Future[OutriderError | None] = asyncio.get_running_loop().create_future()
    chat.ask(num_tokens, told.set_result)
    return await told


def tenant(name: str = "acme", **limits: int) -> Identity:
    return Identity(tenant=name, limits=TenantLimits(**limits))


async def test_two_edges_let_as_many_through_as_one(server: RedisServer) -> None:
    who = tenant(requests_per_minute=10)
    async with edge(server) as one, edge(server) as two:
        chats = [limiter.begin(who) for limiter in (one, two) for _ in range(10)]
        told = await asyncio.gather(*map(asked, chats))
    refused = [error for error in told if error is not None]
    assert len(refused) in (9, 10), "one more may have filled meanwhile"
    for error in refused:
        assert isinstance(error, RateLimitedError)
        assert 0 < error.retry_delay_ms <= 60_000 and error.metadata["remaining"] == "0"


async def test_a_reader_of_redis_finds_no_tenants_name(server: RedisServer) -> None:
    who = tenant("clinic", requests_per_minute=10, input_tokens_per_minute=10, max_sessions=2)
    async with edge(server) as one:
        assert await asked(one.begin(who), 5) is None
        with redis.Redis(port=server.port) as reader:
            told = str([(key, reader.hgetall(key)) for key in reader.keys()])
    assert len(told) > 100 and "clinic" not in told


async def test_a_prompt_counts_at_all_edges(server: RedisServer) -> None:
    who = tenant(input_tokens_per_minute=1000)
    async with edge(server) as one, edge(server) as two:
        assert await asked(one.begin(who), 900) is None
        error = await asked(two.begin(who), 900)
        assert isinstance(error, RateLimitedError) and error.metadata["limited"] == "input_tokens"
        assert await asked(two.begin(who), 50) is None
        assert await asked(two.begin(tenant("other", input_tokens_per_minute=1000)), 900) is None
        assert one.states(who)[Limited.INPUT].remaining == 100, "what it was told last"


async def test_replies_of_one_edge_make_the_other_wait(server: RedisServer) -> None:
    who = tenant(output_tokens_per_minute=100)
    async with edge(server) as one, edge(server) as two:
        chat = one.begin(who)
        assert await asked(chat) is None
        chat.charge(output_tokens=5000)
        errors: list[OutriderError | None] = []

        async def is_refused() -> bool:
            another = two.begin(who)
            errors.append(await asked(another))
            another.close()
            return errors[-1] is not None

        while not await is_refused():
            await asyncio.sleep(0.02)
        error = errors[-1]
        assert isinstance(error, RateLimitedError) and error.metadata["limited"] == "output_tokens"
        with pytest.raises(RateLimitedError):
            two.begin(who)  # it knows now, and need not ask


async def test_sessions_are_those_of_all_edges(server: RedisServer) -> None:
    who = tenant(max_sessions=3)
    async with edge(server) as one, edge(server) as two:
        first = [one.begin(who), one.begin(who)]
        assert [await asked(chat) for chat in first] == [None, None]
        mine = two.begin(who)
        assert await asked(mine) is None
        too_many = two.begin(who)
        error = await asked(too_many)
        assert isinstance(error, RateLimitedError) and error.metadata["limited"] == "sessions"
        too_many.close()
        first[0].close()

        async def is_let_in() -> bool:
            chat = two.begin(who)
            if await asked(chat) is None:
                return True
            chat.close()
            return False

        while not await is_let_in():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("is_told", [True, False], ids=["reset", "forgotten"])
async def test_connections_that_are_dead_are_made_anew(is_told: bool, server: RedisServer) -> None:
    who = tenant(max_sessions=1)
    with forgetful_relay(server.port) as relay:
        far = SharedLimitsConfig(f"redis://127.0.0.1:{relay.port}/0", timeout_ms=500.0)
        shared = open_shared_limits(far)
        assert shared is not None
        limiter = Limiter(lambda: 0.0)
        limiter.share(shared)
        async with edge(server) as other:
            mine = limiter.begin(who)
            assert await asked(mine) is None
            mine.close()
            if is_told:
                relay.reset()
            else:
                relay.forget()
                began_at = time.monotonic()
                alone = limiter.begin(tenant("another", max_sessions=1))
                assert await asked(alone) is None, "it decides by itself"
                assert time.monotonic() - began_at < 5.0
                alone.close()

            async def is_taken() -> bool:
                chat = other.begin(who)
                refused = await asked(chat) is not None
                chat.close()
                return refused

            chat = limiter.begin(who)
            assert await asked(chat) is None
            assert await is_taken(), "the other edge knows of it"
            chat.close()
        await shared.close()


async def test_the_end_of_one_chat_does_not_hide_the_next(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end waits a moment to be told; a chat is asked for at once, and so told of before."""
    monkeypatch.setattr(shared_limits, "_FLUSH_S", 3600.0)
    who = tenant(max_sessions=1)
    async with edge(server) as one, edge(server) as two:
        first = one.begin(who)
        assert await asked(first) is None
        first.close()
        second = one.begin(who)
        assert await asked(second) is None
        shared = one._shared
        assert isinstance(shared, shared_limits.SharedLimits)
        shared._hand_over()
        # Behind what waited, so that it was told before this is asked for.
        assert await asked(one.begin(tenant("other", requests_per_minute=1))) is None
        error = await asked(two.begin(who))
        assert isinstance(error, RateLimitedError) and error.metadata["limited"] == "sessions"


async def test_what_is_held_is_forgotten_with_its_limit(server: RedisServer) -> None:
    async with edge(server) as one:
        shared = one._shared
        assert isinstance(shared, shared_limits.SharedLimits)
        chat = one.begin(tenant(max_sessions=2))
        assert await asked(chat) is None and len(shared._held) == 1
        one.begin(tenant(requests_per_minute=9))
        chat.close()
        assert not shared._held, "nothing of it is told for ever"


async def test_what_was_used_beyond_a_limit_is_not_forgotten(server: RedisServer) -> None:
    who = tenant(output_tokens_per_minute=60)
    async with edge(server) as one:
        chat = one.begin(who)
        assert await asked(chat) is None
        chat.charge(output_tokens=60 * 10)
    client = redis.Redis(port=server.port)
    (key,) = [key for key in client.scan_iter() if key.endswith(b":rates")]
    assert 595 <= client.ttl(key) <= 601, "until the bucket is full again"
    client.close()


async def test_an_edge_that_was_killed_holds_nothing_for_long(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "LEASE_S", -1)
    who = tenant(max_sessions=1)
    async with edge(server) as one:
        assert await asked(one.begin(who)) is None
        async with edge(server) as two:
            assert await asked(two.begin(who)) is None


async def test_without_redis_each_edge_decides_and_no_chat_waits(server: RedisServer) -> None:
    who = tenant(requests_per_minute=5)
    server.kill()
    async with edge(server) as one:
        told = [await asked(one.begin(who)) for _ in range(5)]
        assert told == [None] * 5
        with pytest.raises(RateLimitedError):
            one.begin(who)


async def test_redis_may_go_and_come_back(server: RedisServer) -> None:
    many = tenant("many", requests_per_minute=10**6)
    async with edge(server) as one:
        assert await asked(one.begin(many)) is None
        server.kill()
        for _ in range(5):
            assert await asked(one.begin(many)) is None
        shared = one._shared
        assert isinstance(shared, shared_limits.SharedLimits) and shared._breaker.is_open
        server.start()  # it has no script any more, and no counts

        while shared._breaker.is_open:
            assert await asked(one.begin(many)) is None


async def test_a_redis_that_hangs_is_not_waited_for(server: RedisServer) -> None:
    who = tenant(requests_per_minute=100)
    pause = redis.Redis(port=server.port)
    async with edge(server, timeout_ms=30.0) as one:
        pause.client_pause(60_000)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert await asked(one.begin(who)) is None
        assert loop.time() - begun < 5.0
        server.kill()
    pause.close()


async def test_what_waits_for_redis_is_bounded(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "_MAX_QUEUED", 3)
    shared = open_shared_limits(SharedLimitsConfig(server.url, timeout_ms=PATIENCE_MS))
    assert shared is not None
    told: list[SharedAnswer | None] = []
    with shared._changed:  # the thread cannot take any of them
        pass
    limits = TenantLimits(requests_per_minute=100)
    held = shared._changed
    held.acquire()
    try:
        shared._asks.extend([None] * 3)  # type: ignore[list-item]
        shared.ask(SharedAsk("acme", limits, 1, 1), told.append)
        assert told == [None], "this edge decides"
        shared._asks.clear()
    finally:
        held.release()
    await shared.close()


async def test_what_is_left_is_told_at_the_end(server: RedisServer) -> None:
    limits = TenantLimits(output_tokens_per_minute=100)
    async with edge(server) as one:
        one.begin(Identity(tenant="acme", limits=limits)).charge(output_tokens=70)
    client = redis.Redis(port=server.port)
    (key,) = [key for key in client.scan_iter() if key.endswith(b":rates")]
    assert 29 <= float(client.hget(key, "2") or 0) <= 32
    assert 0 < client.ttl(key) <= 120, "nothing is kept"
    assert b"acme" not in key
    client.close()


def test_what_cannot_be_configured(tmp_path: Path) -> None:
    assert open_shared_limits(SharedLimitsConfig()) is None
    for url in ("http://a", "redis://user:secret@a", "redis://a?db=1"):
        with pytest.raises(ConfigError) as refused:
            open_shared_limits(SharedLimitsConfig(url))
        assert "secret" not in refused.value.message
    with pytest.raises(ConfigError, match="use one"):
        SharedLimitsConfig("redis://a", password="a", password_file=tmp_path / "b")
    with pytest.raises(ConfigError, match=r"password_file .* cannot be read"):
        open_shared_limits(SharedLimitsConfig("rediss://a", password_file=tmp_path / "b"))


async def test_the_thread_ends_with_the_edge(server: RedisServer) -> None:
    shared = open_shared_limits(SharedLimitsConfig(server.url))
    assert isinstance(shared, SharedLimits)
    await shared.close()
    assert not shared._thread.is_alive()
    told: list[SharedAnswer | None] = []
    shared.ask(SharedAsk("a", TenantLimits(1), 1, 1), told.append)
    await eventually(lambda: told == [None])
