"""Who reads or writes Redis, or listens in between, and has not the key."""

from __future__ import annotations

import asyncio
import ssl
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import redis

from outrider.redis_settings import RedisAddress
from outrider.testing import eventually
from outrider.tokenization.shared_cache.entries import Entries
from outrider.tokenization.shared_cache.redis_cache import (
    RedisStore,
    RedisTokenCache,
    SharedCachePolicy,
    connect,
)
from services.edge.quic import certificate
from tests.redis_server import RedisServer, redis_server

IDS = array("I", range(500, 600))
TEXT = "Dear Miriam, thank you for your letter."
PASSWORD = "a password that nobody may see"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


def tokens_of(store: RedisStore, secret: str = "secret") -> RedisTokenCache:
    return RedisTokenCache(store, Entries(secret, bytes(32), 1000), min_chars=10)


async def found_through(address: RedisAddress) -> list[array[int] | None]:
    """What is found of a text that was put there, all over one address."""
    store = RedisStore(connect(address, 1.0, 4), SharedCachePolicy())
    try:
        tokens = tokens_of(store)
        tokens.put(TEXT, IDS, b"salt", "backend")
        figures = store.stats
        await eventually(lambda: bool(figures.num_written or figures.num_dropped))
        return await asyncio.to_thread(tokens.get, [TEXT], b"salt", "backend")
    finally:
        await asyncio.to_thread(store.close)


async def test_all_of_redis_tells_nothing_of_texts_and_ids(server: RedisServer) -> None:
    assert await found_through(RedisAddress(server.url)) == [IDS]
    with redis.Redis.from_url(server.url) as client:
        kept = {key: client.get(key) for key in client.keys("*")}
        ((name, value),) = kept.items()
        assert isinstance(value, bytes)
        seen = name + value
        for word in (b"Miriam", b"letter", b"salt", b"backend", b"secret"):
            assert word not in seen
        for width in ("H", "I"):
            for at in range(len(IDS) - 2):
                assert array(width, IDS[at : at + 3]).tobytes() not in seen
        client.set(name, value[:-1] + b"x")
    store = RedisStore(connect(RedisAddress(server.url), 1.0, 4), SharedCachePolicy())
    assert tokens_of(store).get([TEXT], b"salt", "backend") == [None], "it was forged"
    assert tokens_of(store, "another").get([TEXT], b"salt", "backend") == [None]
    store.close()


async def test_a_user_with_no_more_rights_than_it_needs(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        rights = ("on", f">{PASSWORD}", "~outrider:tokens:*", "+mget", "+set")
        client.execute_command("ACL", "SETUSER", "tokenizer", *rights)
        client.execute_command("ACL", "SETUSER", "default", "off")
        address = RedisAddress(server.url, "tokenizer", PASSWORD)
        assert await found_through(address) == [IDS]
        assert await found_through(RedisAddress(server.url, "tokenizer", "wrong")) == [None]
        assert await found_through(RedisAddress(server.url)) == [None]
    assert PASSWORD not in repr(address)


@asynccontextmanager
async def in_front(server: RedisServer, folder: Path, host: str) -> AsyncIterator[RedisAddress]:
    """TLS at `host` in front of a Redis that was built without, as stunnel has it; its certificate
    is for 127.0.0.1."""
    chain, key = certificate.ensure(folder, (), certificate.utc_now())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain, key)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", server.port)
        with suppress(asyncio.CancelledError):
            await asyncio.gather(
                pump(reader, inner_writer), pump(inner_reader, writer), return_exceptions=True
            )

    listener = await asyncio.start_server(serve, host, ssl=context)
    port = listener.sockets[0].getsockname()[1]
    async with listener:
        yield RedisAddress(f"rediss://{host}:{port}/0", ca=chain)


async def test_over_tls_to_whom_the_certificate_names(server: RedisServer, tmp_path: Path) -> None:
    async with in_front(server, tmp_path, "127.0.0.1") as address:
        assert await found_through(address) == [IDS]
        assert await found_through(RedisAddress(address.url)) == [None], "nobody vouches for it"


async def test_a_certificate_for_another_host_is_none(server: RedisServer, tmp_path: Path) -> None:
    async with in_front(server, tmp_path, "127.0.0.2") as address:
        assert await found_through(address) == [None]


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (RedisAddress(f"redis://me:{PASSWORD}@host:1/0"), "holds a user or a password"),
        (RedisAddress(f"redis://:{PASSWORD}@host:1/0"), "holds a user or a password"),
        (RedisAddress("rediss://host:1/0?ssl_cert_reqs=none"), "has options"),
        (RedisAddress("redis://host:1/0", password=PASSWORD), "unencrypted"),
        (RedisAddress("redis://host:1/0", ca=Path("ca.pem")), "no TLS"),
        (RedisAddress("unix:///tmp/redis"), "use redis://"),
        (RedisAddress(f"http://{PASSWORD}"), "use redis://"),
        (RedisAddress("redis://[::1"), "no URL"),
    ],
)
def test_addresses_that_are_refused_without_being_repeated(address: RedisAddress, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        connect(address, 1.0, 1)
    assert PASSWORD not in str(refused.value)
