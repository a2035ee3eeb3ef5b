"""A LOW reply whose KV a HIGH session took: how soon it goes on once there is room again, where its
KV is computed anew and where it was kept in the host's memory (`inference.kv_swap.max_bytes`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bench.harness import Run, median
from bench.harness.region_client import RegionClient, Reply
from bench.kv.replicas import BLOCK_TOKENS, SAMPLING, Replicas, prompts
from outrider.models.vocabulary import Vocabulary
from outrider.v1 import common_pb2

NUM_TOKENS = 1500
"""Of a prompt."""
NUM_BLOCKS = 60
"""Of the pool: room for one of the two sessions, and a quarter of the other."""
BEGUN = 8
"""Tokens of the LOW reply behind which the HIGH session comes."""
WAYS = {"computed": 0, "kept": 1 << 30}
"""Bytes of the host's memory for what sessions lose."""
_LOW = replace(SAMPLING, max_tokens=40)


@dataclass(slots=True)
class Pauses:
    """Pair by pair."""

    until_next_ms: list[float] = field(default_factory=list)
    """From the end of the HIGH reply to the next token of the LOW one."""
    high_ttft_ms: list[float] = field(default_factory=list)
    """What keeping costs whoever needed the room."""
    replies: list[tuple[int, ...]] = field(default_factory=list)
    """The LOW ones."""


async def measure(
    vocabulary: Vocabulary, count: int, threads: int, progress: Callable[[str], None]
) -> dict[str, Pauses]:
    """`count` pairs of each way."""
    replicas = Replicas(vocabulary, threads)
    work = prompts(vocabulary, NUM_TOKENS, 2 * count)
    found = {way: Pauses() for way in (*WAYS, "undisturbed")}
    for way, max_bytes in WAYS.items():
        settings = {"num_blocks": NUM_BLOCKS, "kv_swap.max_bytes": max_bytes}
        async with replicas.one(None, way, settings=settings) as (client, _):
            await replicas.ask(client, work[0][::-1], b"warm-up")
            for number in range(count):
                low, high = work[2 * number : 2 * number + 2]
                await _pair(replicas, client, low, high, found[way])
                if max_bytes == 0:
                    alone = await replicas.ask(client, low, b"alone", sampling=_LOW)
                    found["undisturbed"].replies.append(tuple(alone.ids))
                progress(f"preempted, {way}: {number + 1} of {count}")
    return found


async def _pair(
    replicas: Replicas,
    client: RegionClient,
    low_prompt: Sequence[int],
    high_prompt: Sequence[int],
    into: Pauses,
) -> None:
    has_begun = asyncio.Event()

    def watch(ids: Sequence[int]) -> Sequence[int]:
        """Asked for drafts after each commit: there are none."""
        if len(ids) >= BEGUN:
            has_begun.set()
        return ()

    async def ask_low() -> Reply:
        priority = common_pb2.PRIORITY_LOW
        return await replicas.ask(
            client, low_prompt, b"low", sampling=_LOW, priority=priority, drafter=watch
        )

    async with asyncio.TaskGroup() as group:
        asked = group.create_task(ask_low())
        await has_begun.wait()
        high = await replicas.ask(client, high_prompt, b"high", priority=common_pb2.PRIORITY_HIGH)
    low = asked.result()
    ended_at = high.commit_times[-1]
    later = [at for at in low.commit_times if at > ended_at]
    if len(low.commit_times) - len(later) >= _LOW.max_tokens - 1:
        raise RuntimeError("the LOW reply was not interrupted: give the pool fewer blocks")
    into.until_next_ms.append((later[0] - ended_at) * 1e3)
    into.high_ttft_ms.append(high.ttft_ms)
    into.replies.append(tuple(low.ids))


def is_exact(found: dict[str, Pauses]) -> bool:
    """Whether no reply differs from the undisturbed one."""
    truth = found["undisturbed"].replies
    return all(found[way].replies == truth for way in WAYS)


def report(run: Run, found: dict[str, Pauses]) -> None:
    table = run.table(
        f"A LOW reply behind {NUM_TOKENS} tokens of prompt loses its KV to a HIGH session of as "
        "many, ms",
        *("KV of the LOW one", "n", "from the end of HIGH to its next token"),
        "first token of HIGH",
    )
    for way in WAYS:
        it = found[way]
        pause_ms, high_ms = table.median(it.until_next_ms), table.median(it.high_ttft_ms)
        table.add(way, len(it.until_next_ms), pause_ms, high_ms)
        run.samples(f"preempted, {way}", it.until_next_ms, unit="ms")
    table.note(f"A pool of {NUM_BLOCKS} blocks of {BLOCK_TOKENS} tokens.")
    run.figures["preempted_until_next_ms"] = {
        way: round(median(found[way].until_next_ms), 1) for way in WAYS
    }
    run.figures["preempted_exact"] = is_exact(found)
