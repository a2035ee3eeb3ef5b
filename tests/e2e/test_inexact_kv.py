"""KV in 8 bits between replica processes and through a Redis, for the one tenant that allows it.
Another tenant's replies are exact, and so are its own once the operator withdraws the consent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from bench.faults.chats import ReferenceChat, make_reference_chats
from bench.harness.mesh import HOST, Mesh, Service, mesh, replica_rows, until_placing
from outrider.client import ChatResult, Message, connect
from tests.api_keys import key_of, text_of, write_keys
from tests.cli.invoking import invoke
from tests.redis_server import RedisServer, redis_server

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

BLOCK = 16
CALL_MS = 20.0
"""Of the fake engine, for a block of the prompt: KV comes sooner than the prompt is computed."""
PROMPT = " ".join(f"whale {n}" for n in range(300))
LIMIT_S = 120.0
CONSENTS = {"name": "acme", "allow_inexact": True}
PEER, STORE = "outrider_kv_peer_blocks_total", "outrider_kv_store_blocks_total"


@dataclass(frozen=True)
class Fleet:
    """Two replicas of the fake engine with a Redis, a router, and an edge with two tenants."""

    made: Mesh
    replicas: dict[str, Service]
    router: Service
    edge: Service

    async def ask(self, tenant: str, asked: ReferenceChat) -> ChatResult:
        """One chat of a tenant."""
        way = connect(HOST, self.edge.port, ca=self.made.ca, key=text_of(tenant))
        messages = [Message("user", asked.prompt)]
        async with way as client, asyncio.timeout(LIMIT_S):
            async with client.chat(messages, sampling=asked.sampling, speculation="off") as chat:
                return await chat.result()

    async def count(self, replica: str, metric: str, **labels: str) -> float:
        """What a replica counts."""
        samples = await self.replicas[replica].samples()
        return sum(
            it.value for it in samples if it.name == metric and labels.items() <= it.labels.items()
        )

    async def drain(self, name: str) -> None:
        """`outrider drain`; it has an event loop of its own, so a thread."""
        words = ["drain", name, "--router", self.router.address, "--plaintext"]
        done = await asyncio.to_thread(invoke, words)
        assert done.exception is None, done.exception

    async def restart_replicas(self) -> None:
        """Other processes, with empty caches."""
        for replica in self.replicas.values():
            replica.kill()
        await self.made.start(*self.replicas.values())
        await until_placing(self.router, len(self.replicas))

    async def withdraw_consent(self) -> None:
        """Another router process, whose tenants allow nothing."""
        self.router.kill()
        values = {key: it for key, it in self.router.values.items() if key != "tenants"}
        router = self.made.service("exact-router", "router", {**values, "port": self.router.port})
        router.port = self.router.port
        await self.made.start(router)
        await until_placing(router, len(self.replicas))


@asynccontextmanager
async def running(redis: RedisServer) -> AsyncIterator[Fleet]:
    values: dict[str, Any] = {
        "engine": "fake",
        "fake_call_ms": CALL_MS,
        "inexact_kv": True,
        "prefix_store": {"url": redis.url, "key": "k" * 32, "min_tokens": BLOCK},
        "kv_peers": {"min_tokens": BLOCK, "timeout_ms": 60_000.0},
        # A block a call, slowly as the first guess has it: loading pays on any machine.
        "scheduler": {"prefill_chunk_tokens": BLOCK, "row_ms": 1000.0},
    }
    async with mesh("inexact-kv") as made:
        replicas = {
            name: made.service(name, "inference", {"replica": name, **values}, region="here")
            for name in ("one", "two")
        }
        routing = {"replicas": replica_rows(replicas.values()), "tenants": (CONSENTS,)}
        router = made.service("router", "router", routing, region="here")
        write_keys(made.folder / "keys.json", key_of("acme"), key_of("other"))
        serving = {
            "name": "edge",
            "routers": (router.address,),
            "state_dir": str(made.folder),
            "tenants": ({"name": "acme"}, {"name": "other"}),
            "cache_salt_key": "s" * 32,
            "drafter.model": "none",
        }
        edge = made.service("edge", "edge", serving, region="here")
        await made.start(*replicas.values(), router, edge)
        await until_placing(router, len(replicas))
        yield Fleet(made, replicas, router, edge)


async def check_exact(fleet: Fleet, tenant: str, asked: ReferenceChat) -> None:
    """The reply is the reference's, and none of it comes from anybody's KV."""
    result = await fleet.ask(tenant, asked)
    assert (result.text, result.ids) == (asked.text, asked.ids)
    assert not result.inexact and result.usage.cached_tokens == 0


async def check_inexact(fleet: Fleet, asked: ReferenceChat) -> ChatResult:
    """The reply is labelled, and another one: the fake engine's KV are hashes."""
    result = await fleet.ask("acme", asked)
    assert result.inexact and result.usage.cached_tokens > 0
    assert result.ids != asked.ids
    return result


async def test_kv_in_8_bits_is_for_the_tenant_that_allows_it_and_labelled() -> None:
    asked = make_reference_chats("fake", 40, [PROMPT])[0]
    sessions = "outrider_kv_inexact_sessions_total"
    with redis_server() as redis:
        async with running(redis) as fleet:
            # Between replicas.
            first = await fleet.ask("acme", asked)
            assert first.ids == asked.ids and not first.inexact, "computed where it is used"
            holder = first.replica
            (taker,) = fleet.replicas.keys() - {holder}
            await fleet.drain(holder)
            moved = await check_inexact(fleet, asked)
            assert moved.replica == taker
            assert await fleet.count(taker, PEER, result="loaded") >= 1
            assert await fleet.count(holder, PEER, result="served") >= 1
            await check_exact(fleet, "other", asked)
            assert await fleet.count(taker, sessions) == 1

            # Through the Redis, where it is once two sessions had it in common.
            await check_inexact(fleet, asked)

            async with asyncio.timeout(LIMIT_S):
                while not await fleet.count(taker, STORE, result="saved"):
                    await asyncio.sleep(0.02)
            await fleet.restart_replicas()
            again = await check_inexact(fleet, asked)
            loaded = await fleet.count(again.replica, STORE, result="loaded")
            assert loaded >= 1 and not await fleet.count(again.replica, PEER, result="loaded")
            await check_exact(fleet, "other", asked)
            assert await fleet.count(again.replica, STORE, result="loaded") == loaded

            # The tenant's own exact replies find none of it either.
            await fleet.withdraw_consent()
            await check_exact(fleet, "acme", asked)
            counts = [await fleet.count(name, sessions) for name in fleet.replicas]
            assert sum(counts) == 1, "of the processes that run now"
