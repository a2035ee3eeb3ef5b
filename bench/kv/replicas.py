"""The replicas, the Redis and the work that prefixes are measured with."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from bench.harness.mesh import HOST, Service
from bench.harness.prompts import PromptSupply
from bench.harness.region_client import RegionClient, Reply
from bench.harness.replica import coder_of, replica_process
from bench.harness.run_folder import run_folder
from outrider.cli.local.redis_server import LocalRedis, find_binary
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually

BLOCK_TOKENS = 32
SAMPLING = SamplingParams(max_tokens=4, ignore_eos=True)
STORED = b"a group with prefixes in the Redis"
MOVED = b"a group with prefixes on another replica"


@dataclass(frozen=True, slots=True)
class Store:
    """A Redis that runs, with nothing of any other run in it."""

    port: int
    settings: Mapping[str, object]
    """`[inference.prefix_store]`."""
    client: redis.Redis

    def through(self, port: int) -> dict[str, object]:
        """The settings of a replica that reaches it over this port."""
        return {**self.settings, "url": f"redis://{HOST}:{port}/0"}

    async def until_stored(self, num_blocks: int) -> None:
        """Wait until it has so many blocks."""
        await eventually(lambda: int(self.client.dbsize()) >= num_blocks, timeout_s=120)


@contextlib.asynccontextmanager
async def prefix_store() -> AsyncIterator[Store]:
    """As `outrider up --prefix-store redis` starts one. Raises ConfigError, which says what to
    install."""
    with run_folder("kv") as files:
        server = LocalRedis(find_binary(), HOST, Path(files.path) / "redis.log")
        await server.start()
        try:
            password = str(server.settings["password"])
            with redis.Redis(port=server.port, password=password) as client:
                yield Store(server.port, server.settings, client)
        finally:
            await server.stop()


class Replicas:
    """Replicas of one model."""

    def __init__(self, vocabulary: Vocabulary, threads: int) -> None:
        self._vocabulary = vocabulary
        # Prompts alone are measured: models for small calls would take a minute to compile.
        self._settings = {
            "threads": threads,
            "max_fixed_rows": 0,
            "prepare_first": False,
            "inexact_kv": True,
        }

    @contextlib.asynccontextmanager
    async def one(self, name: str, **values: Any) -> AsyncIterator[tuple[RegionClient, Service]]:
        """A replica that has just started."""
        coder = coder_of(self._vocabulary)
        async with (
            replica_process({**self._settings, "replica": name, **values}) as service,
            RegionClient(coder, service.address, via_router=False) as client,
        ):
            yield client, service

    async def ask(
        self,
        client: RegionClient,
        prompt: Sequence[int],
        salt: bytes,
        *,
        sampling: SamplingParams = SAMPLING,
        **how: Any,
    ) -> Reply:
        """One reply. The group of STORED alone lasts, so that its prefixes are stored."""
        return await client.generate(
            prompt,
            sampling,
            digest=self._vocabulary.digest,
            cache_salt=salt,
            group_lasts=salt == STORED,
            **how,
        )


def prompts(vocabulary: Vocabulary, size: int, count: int) -> list[tuple[int, ...]]:
    """Pieces of documents that begin differently."""
    texts = iter(PromptSupply("document", seed=size).take(40 * count))
    found = []
    for _ in range(count):
        ids: list[int] = []
        while len(ids) < size:
            ids += vocabulary.encode(next(texts))
        found.append(tuple(ids[:size]))
    return found
