"""Time to the first token of a long prompt: computed, cached in the process, loaded from a Redis,
and moved from another replica, near and far; and the pause of a reply that goes on elsewhere.

Of each size there are several prompts. A first replica, which stays, has each asked twice, so that
it is stored, and once under another group, which only it has; and all that again for sessions that
allow inexact text. Then, for every link to Redis and first replica (a distance, and what it carries
a second), a new one is started on an empty cache and has each prompt asked once cold (under a group
that has nothing), once under either of these groups, and once more, which finds it cached. Last it
is asked under either group with KV in 8 bits.

Then replies that the first replica began go on at the new one behind their first tokens: computed,
with the KV of the first replica, and with what the Redis has of the prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bench.harness import Run
from bench.harness.mesh import HOST
from bench.harness.region_client import RegionClient, Reply
from bench.kv.replicas import (
    BLOCK_TOKENS,
    MOVED,
    SAMPLING,
    STORED,
    Replicas,
    prefix_store,
    prompts,
)
from bench.relay.control import relay
from bench.relay.lane import Conditions
from outrider.models.vocabulary import Vocabulary
from outrider.v1 import inference_pb2

SIZES = (600, 1500)
"""Tokens of a prompt."""
WAYS = ("computed", "from the Redis", "from another replica", "cached in the process")
IN_8_BITS = ("from the Redis, 8 bits", "from another replica, 8 bits")
"""The second and the third of them, for sessions that allow inexact text."""
MOVING = (*WAYS[1:3], *IN_8_BITS)
"""Ways in which KV comes from elsewhere."""
NUM_RESUMED = 64
"""Tokens of a reply behind which it goes on elsewhere."""


class Link(NamedTuple):
    """Between the new replica and the Redis, and between it and the first replica."""

    rtt_ms: float
    rate_mbit_s: float = 0.0
    """What each of its connections carries a second, either way; 0: as much as comes."""

    def __str__(self) -> str:
        rate = f", {self.rate_mbit_s:g} Mbit/s" if self.rate_mbit_s else ""
        return f"{self.rtt_ms:g} ms{rate}"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    num_nearest: int
    """Prompts of each size over the first link, and replies that go on elsewhere."""
    num_others: int
    """Prompts of each size over the others."""
    links: tuple[Link, ...]


@dataclass(slots=True)
class Asked:
    """Replies to the prompts of one size, over one link: prompt by prompt, by way."""

    replies: dict[str, list[Reply]] = field(
        default_factory=lambda: {way: [] for way in (*WAYS, *IN_8_BITS)}
    )

    @property
    def num_equal(self) -> int:
        """Prompts that all exact ways answered alike."""
        rows = zip(*(self.replies[way] for way in WAYS), strict=True)
        return sum(all(one.ids == row[0].ids for one in row) for row in rows)

    @property
    def num_prompts(self) -> int:
        return len(self.replies[WAYS[0]])

    def times_ms(self, way: str) -> list[float]:
        return [reply.ttft_ms for reply in self.replies[way]]

    def over_computed(self, way: str) -> list[float]:
        return [a / b for a, b in zip(self.times_ms(way), self.times_ms(WAYS[0]), strict=True)]

    def loaded_share(self, way: str) -> float:
        """Of the prompts' tokens."""
        replies = self.replies[way]
        asked = sum(reply.prompt_tokens for reply in replies)
        return sum(reply.cached_tokens for reply in replies) / asked


@dataclass(slots=True)
class Pauses:
    """From opening a begun reply at its next replica to its next token, prompt by prompt."""

    by_way: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS[:3]})
    num_equal: int = 0
    num_replies: int = 0


@dataclass(slots=True)
class Measured:
    """All of it, by size and link."""

    asked: dict[tuple[int, Link], Asked]
    pauses: Pauses = field(default_factory=Pauses)


async def measure(
    vocabulary: Vocabulary, how: Size, threads: int, progress: Callable[[str], None]
) -> Measured:
    """All of it, and says what is done."""
    found = Measured({(size, over): Asked() for size in SIZES for over in how.links})
    work = {size: prompts(vocabulary, size, how.num_nearest) for size in SIZES}
    begun: dict[tuple[int, ...], Reply] = {}
    longer = replace(SAMPLING, max_tokens=NUM_RESUMED + SAMPLING.max_tokens)
    replicas = Replicas(vocabulary, threads)
    async with prefix_store() as store, relay() as link:
        async with replicas.one("first", prefix_store=store.settings) as (first, service):
            num_blocks = 0
            for prompt in (prompt for size in SIZES for prompt in work[size]):
                for _ in range(2):
                    await replicas.ask(first, prompt, STORED)
                    await replicas.ask(first, prompt, STORED, allows_inexact=True)
                await replicas.ask(first, prompt, MOVED, allows_inexact=True)
                num_blocks += 2 * (len(prompt) // BLOCK_TOKENS)
                await store.until_stored(num_blocks)
                begun[prompt] = await replicas.ask(first, prompt, MOVED, sampling=longer)
                progress(f"prompts stored: {len(begun)} of {how.num_nearest * len(SIZES)}")
            near_redis = store.through(await link.add("redis", "tcp", (HOST, store.port)))
            near_first = await link.add("first", "tcp", (HOST, service.port))

            def holder(num_tokens: int) -> inference_pb2.KvHolder:
                where = f"{HOST}:{near_first}"
                return inference_pb2.KvHolder(replica="first", address=where, num_tokens=num_tokens)

            for over in how.links:
                is_nearest = over == how.links[0]
                for name in ("redis", "first"):
                    conditions = Conditions(over.rtt_ms / 2, rate_mbit_s=over.rate_mbit_s)
                    await link.set(name, conditions)
                async with replicas.one("new", prefix_store=near_redis) as (client, _):
                    # What is measured first would pay for connections and for memory never touched.
                    reverse = work[SIZES[0]][0][::-1]
                    of_it = holder(len(reverse))
                    await replicas.ask(client, reverse, b"warm-up", kv_holder=of_it)
                    for size in SIZES:
                        into = found.asked[size, over]
                        asked = work[size][: how.num_nearest if is_nearest else how.num_others]
                        await _ask_all(replicas, client, asked, into, holder)
                        progress(f"prompts of {size} tokens asked over {over}")
                if is_nearest:
                    async with replicas.one("next", prefix_store=near_redis) as (client, _):
                        await replicas.ask(client, reverse, b"warm-up", kv_holder=of_it)
                        await _resume_all(
                            replicas, client, work[SIZES[-1]], begun, found.pauses, holder
                        )
                        progress("replies that go on elsewhere")
    return found


async def _ask_all(
    replicas: Replicas,
    client: RegionClient,
    work: list[tuple[int, ...]],
    into: Asked,
    holder: Callable[[int], inference_pb2.KvHolder],
) -> None:
    for number, prompt in enumerate(work):
        alone = b"alone %d" % number
        ways, salts = (*WAYS, *IN_8_BITS), (alone, STORED, MOVED, MOVED, STORED, MOVED)
        for way, salt in zip(ways, salts, strict=True):
            whose = holder(len(prompt)) if way in (WAYS[2], IN_8_BITS[1]) else None
            reply = await replicas.ask(
                client, prompt, salt, kv_holder=whose, allows_inexact=way in IN_8_BITS
            )
            into.replies[way].append(reply)


async def _resume_all(
    replicas: Replicas,
    client: RegionClient,
    work: list[tuple[int, ...]],
    begun: dict[tuple[int, ...], Reply],
    into: Pauses,
    holder: Callable[[int], inference_pb2.KvHolder],
) -> None:
    longer = replace(SAMPLING, max_tokens=NUM_RESUMED + SAMPLING.max_tokens)
    for number, prompt in enumerate(work):
        resume = begun[prompt].ids[:NUM_RESUMED]
        for way, salt in zip(WAYS[:3], (b"alone %d" % number, STORED, MOVED), strict=True):
            whose = holder(len(prompt) + len(resume)) if way == WAYS[2] else None
            reply = await replicas.ask(
                client, prompt, salt, kv_holder=whose, resume=resume, sampling=longer
            )
            into.by_way[way].append(reply.ttft_ms)
            into.num_equal += reply.ids == begun[prompt].ids
            into.num_replies += 1


def report(run: Run, found: Measured) -> None:
    table = run.table(
        "Time to first token of prompts whose KV is elsewhere, replica just started, ms",
        *("tokens", "link to Redis and replica", "n", *WAYS, *IN_8_BITS),
        *(f"{way}: over computed" for way in MOVING),
        *(f"{way}: tokens" for way in MOVING),
    )
    for (size, over), it in found.asked.items():
        table.add(
            *(size, str(over), it.num_prompts),
            *(table.median(it.times_ms(way)) for way in it.replies),
            *(table.median(it.over_computed(way)) for way in MOVING),
            *(f"{it.loaded_share(way):.2f}" for way in MOVING),
        )
        for way in it.replies:
            run.samples(f"{size} tokens, {over}, {way}", it.times_ms(way), unit="ms")
    _report_pauses(run, found.pauses)
    num_asked = sum(it.num_prompts for it in found.asked.values())
    num_equal = sum(it.num_equal for it in found.asked.values())
    table.note(f"{num_equal} of {num_asked} prompts were answered alike in all exact ways.")


def _report_pauses(run: Run, pauses: Pauses) -> None:
    table = run.table(
        f"A reply goes on at another replica behind {NUM_RESUMED} tokens, prompt of {SIZES[-1]}: "
        "from its open there to its next token, ms",
        *("way", "n", "median", "p99", "slowest"),
    )
    for way, times in pauses.by_way.items():
        median_ms, p99_ms = table.median(times), table.quantile(times, 0.99)
        table.add(way, len(times), median_ms, p99_ms, max(times))
        run.samples(f"goes on, {way}", times, unit="ms")
    table.note(f"{pauses.num_equal} of {pauses.num_replies} replies went on as they had begun.")


def is_exact(found: Measured) -> bool:
    """Whether all exact replies to every prompt are the same, and all that went on elsewhere."""
    are_same = all(it.num_equal == it.num_prompts for it in found.asked.values())
    return are_same and found.pauses.num_equal == found.pauses.num_replies
