"""The mesh that is upgraded: three replicas and two processes of every other role, with all that a
deployment keeps over restarts: certificates, API keys, folders of state, prefixes in a Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.harness.mesh import Mesh, Service, mesh, replica_rows
from bench.upgrade.versions import Version
from outrider.cli import router_state
from outrider.cli.local.certificates import OPERATOR, of_process
from outrider.cli.local.redis_server import LocalRedis, find_binary
from outrider.errors import ConfigError, UnavailableError
from outrider.free_ports import free_tcp_port
from outrider.tls import Role, Tls

NUM_REPLICAS: Final = 3
NUM_OTHERS: Final = 2
"""Routers, tokenizers and edges."""
PREFIX: Final = (
    "You are a patient teacher. Explain every step, and use no word that needs explaining."
)
"""System prompt of a static prefix."""
_DRAIN_S: Final = 1.0
"""For sessions of replicas and routers, of which most take longer: they move to other processes,
often of the other version."""
_EDGE_DRAIN_S: Final = 60.0
"""Longer than any reply: those over HTTP cannot move."""
_LIMIT_S: Final = 120.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class UpgradedMesh:
    """All processes and what their clients need."""

    made: Mesh
    replicas: tuple[Service, ...]
    tokenizers: tuple[Service, ...]
    routers: tuple[Service, ...]
    edges: tuple[Service, ...]
    key: str
    """An API key that the earlier version made."""

    @property
    def urls(self) -> list[str]:
        """Of the edges."""
        return [f"quic://{edge.address}" for edge in self.edges]

    @property
    def ca(self) -> Path:
        """The certificate of the edges: the first one made it for development."""
        return _certificate(self.made)

    @property
    def has_tokenizers(self) -> bool:
        """Clients may send text without tokenizing it."""
        return True

    async def new_key(self, version: Version) -> str:
        """A further API key in the file of all edges, made by a command of this version."""
        return await _new_key(self.made, version)

    async def until_whole(self) -> None:
        """Return once every router has all replicas in service. Raises TimeoutError."""
        operator = Tls.open(of_process(self.made.folder, OPERATOR))
        async with asyncio.timeout(_LIMIT_S):
            for router in self.routers:
                while True:
                    rows = await _seen(router, operator)
                    if sum(it["state"] == "READY" for it in rows) == NUM_REPLICAS:
                        break
                    await asyncio.sleep(_POLL_S)

    async def prefix_store_tokens(self) -> int:
        """Prompt tokens whose KV the running replicas took from the Redis."""
        pages = await asyncio.gather(*(it.samples() for it in self.replicas))
        return sum(
            int(sample.value)
            for page in pages
            for sample in page
            if sample.name == "outrider_kv_tokens_total" and sample.labels.get("tier") == "redis"
        )

    def num_learnt_files(self) -> int:
        """Files with statistics of chats, of replicas and edges."""
        return sum(1 for _ in (self.made.folder / "state").rglob("*.learnt"))

    def warnings(self) -> Counter[str]:
        """Events that all processes logged, of both versions; informational ones are not logged."""
        lines = [line for it in self.made.services for line in it.log.read_text().splitlines()]
        return Counter(json.loads(it)["event"] if it.startswith("{") else it for it in lines)

    async def identities(self) -> set[str]:
        """Of the replicas' models: replies move between replicas of one identity only."""
        operator = Tls.open(of_process(self.made.folder, OPERATOR))
        return {it["identity"] for it in await _seen(self.routers[0], operator)}


@contextlib.asynccontextmanager
async def running(version: Version, engine: str, call_ms: float) -> AsyncIterator[UpgradedMesh]:
    """Start every process on this version; all are stopped when the context ends. Calls of the fake
    engine wait `call_ms`."""
    async with contextlib.AsyncExitStack() as stack:
        made = await stack.enter_async_context(mesh("upgrade", is_secure=True))
        redis = await _redis(made, stack)
        replicas = [
            _replica(made, number, engine, call_ms, redis.settings if redis else {})
            for number in range(NUM_REPLICAS)
        ]
        tokenizers = [
            made.service(f"tokenizer-{number}", "tokenizer", {}) for number in range(NUM_OTHERS)
        ]
        routers = [_router(made, number, replicas, tokenizers) for number in range(NUM_OTHERS)]
        edges = [_edge(made, number, routers) for number in range(NUM_OTHERS)]
        key = await _new_key(made, version)
        it = UpgradedMesh(
            made, tuple(replicas), tuple(tokenizers), tuple(routers), tuple(edges), key
        )
        # The first edge makes the certificate that the other one finds.
        for group in ([*replicas, *tokenizers], routers, *([edge] for edge in edges)):
            for service in group:
                service.spawn(version.environment)
            await asyncio.gather(*(service.ready() for service in group))
        for service in made.services:
            await version.check_runs(service)
        await it.until_whole()
        yield it


async def _redis(made: Mesh, stack: contextlib.AsyncExitStack) -> LocalRedis | None:
    try:
        binary = find_binary()
    except ConfigError:
        return None
    server = LocalRedis(binary, "127.0.0.1", made.folder / "redis.log")
    await server.start()
    stack.push_async_callback(server.stop)
    return server


async def _seen(router: Service, operator: Tls) -> list[dict[str, Any]]:
    with contextlib.suppress(UnavailableError):
        return list((await router_state.ask(router.address, operator))["replicas"])
    return []


def _certificate(made: Mesh) -> Path:
    return _state(made, "edge-0") / "tls" / "cert.pem"


def _keys_file(made: Mesh) -> Path:
    return made.folder / "keys.json"


async def _new_key(made: Mesh, version: Version) -> str:
    options = ("--keys-file", str(_keys_file(made)))
    name = f"key-{secrets.token_hex(4)}"
    return (await version.outrider("keys", "create", name, *options)).strip()


def _state(made: Mesh, name: str) -> Path:
    return made.folder / "state" / name


def _replica(
    made: Mesh, number: int, engine: str, call_ms: float, store: Mapping[str, object]
) -> Service:
    name = f"replica-{number}"
    values = {
        "replica": name,
        "engine": engine,
        "fake_call_ms": call_ms,
        "threads": 1,
        "kv_bytes": 1 << 28,
        "max_fixed_rows": 4,
        "drain_s": _DRAIN_S,
        "state_dir": str(_state(made, name)),
        "learnt": {"save_interval_s": 1.0},
        "prefixes": ({"name": "teacher", "tenants": ("*",), "system": PREFIX},),
        # Without drafts of their own, so that replies last.
        "scheduler": {"max_draft_tokens": 0},
    }
    if store:
        values["prefix_store"] = {**store, "min_tokens": 16}
    return made.service(name, Role.INFERENCE, values, region="here")


def _router(made: Mesh, number: int, replicas: list[Service], tokenizers: list[Service]) -> Service:
    values = {
        "replicas": replica_rows(replicas),
        "tokenizers": tuple(it.address for it in tokenizers),
        "max_backoff_s": 0.5,
        "drain_s": _DRAIN_S,
    }
    return made.service(f"router-{number}", Role.ROUTER, values, region="here")


def _edge(made: Mesh, number: int, routers: list[Service]) -> Service:
    name = f"edge-{number}"
    values: dict[str, object] = {
        "name": name,
        # Each edge prefers another router.
        "routers": tuple(it.address for it in (*routers[number:], *routers[:number])),
        "state_dir": str(_state(made, name)),
        "cache_salt_key": "a secret of all edges, thirty-two characters or more",
        "learnt": {"save_interval_s": 1.0},
        "access.keys_file": str(_keys_file(made)),
        "drafter.model": "none",
        "http": {"port": free_tcp_port(), "tls": "off"},
        "quic": {"max_connections_per_address": 1000, "max_chats_per_address": 1000},
        "drain_s": _EDGE_DRAIN_S,
    }
    if number:
        own = _certificate(made)
        values |= {"certificate": str(own), "private_key": str(own.with_name("key.pem"))}
    return made.service(name, Role.EDGE, values, region="here")
