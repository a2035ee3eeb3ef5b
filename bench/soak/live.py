"""Minutes of random chats with a real replica in a process of its own.

What the replica holds is counted after a first while of it, when pools of threads have grown to
their size, and at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import astuple, dataclass, field
from itertools import pairwise
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bench.harness.prompts import load_prompts
from bench.harness.region_client import RegionClient, Reply, opening_frame
from bench.soak.bad_input import BadInput
from bench.systems.replica import replica_process
from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.errors import BadTokenBlockError, DeadlineError, OutriderError
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.rpc import make_channel
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.telemetry import names
from outrider.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from services.inference.reference import generate

SETTINGS = {"scheduler.max_sessions": 8, "num_blocks": 160}
"""A small pool, so that blocks are evicted and sessions preempted all the time."""
NUM_CHATS = 40
NUM_WORKERS = 12
SALTS = (b"", b"acme", b"umbrella")
STARVED_S = 120.0
"""A session that takes so long counts as starved: by then LOW ones go before HIGH ones."""
_DEADLINES_MS = (100, 3000)
"""Some pass in the queue, some amid the reply, some never."""
_BAD_DRAFTS = 0.3
"""Share of bad input that is a draft, behind a good opening."""
_WARM_UP_S = 20.0
_PRIORITIES = (common_pb2.PRIORITY_LOW, common_pb2.PRIORITY_MEDIUM, common_pb2.PRIORITY_HIGH)
_SPECULATION = (
    common_pb2.SPECULATION_ON,
    common_pb2.SPECULATION_OFF,
    common_pb2.SPECULATION_REGION_ONLY,
)


@dataclass(frozen=True, slots=True)
class Chat:
    """One of the chats that are asked again and again."""

    prompt: tuple[int, ...]
    sampling: SamplingParams


@dataclass(slots=True)
class SoakTotals:
    """Counts of the whole run."""

    replies: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    """By the chat's number; all those of a chat have to be the same."""
    partial: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    """The same of sessions that were given up or ran out of time: beginnings of the reply."""
    longest_s: dict[str, float] = field(default_factory=dict)
    """By priority, the longest that a session had to wait for its next token."""
    ends: Counter[str] = field(default_factory=Counter)
    cached_tokens: int = 0
    prompt_tokens: int = 0
    num_kv_events: int = 0
    wrong_errors: list[str] = field(default_factory=list)
    """Of bad input: what came instead of the error that should have."""
    load: inference_pb2.WatchLoadResponse | None = None
    """When all was over."""
    left: HeldResources | None = None
    """Tasks, threads and files that the replica held afterwards and not before."""


def make_chats(vocabulary: Vocabulary, seed: int) -> list[Chat]:
    """Questions behind one of three system prompts, greedy and sampled."""
    chance = random.Random(seed)
    texts = [prompt.text for prompt in load_prompts("chat_short", "code", "languages")]
    systems = [prompt.text[:1500] for prompt in load_prompts("document")][:3]
    return [
        Chat(
            tuple(
                vocabulary.encode_chat(
                    [
                        Message("system", systems[number % 3]),
                        Message("user", texts[number % len(texts)]),
                    ]
                )
            ),
            SamplingParams(
                temperature=chance.choice((0.0, 0.8)),
                seed=number,
                max_tokens=chance.randint(4, 40),
            ),
        )
        for number in range(NUM_CHATS)
    ]


class Soak:
    """Workers that chat at random until the time is over."""

    def __init__(self, vocabulary: Vocabulary, chats: Sequence[Chat], seed: int) -> None:
        self._vocabulary = vocabulary
        self._coder = TokenCoder(
            vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest)
        )
        self._chats = chats
        self._random = random.Random(seed)
        self._bad_input = BadInput(self._coder, random.Random(seed))
        self.totals = SoakTotals()

    async def run(self, seconds: float, threads: int) -> SoakTotals:
        """Raises what a session ends with, but for what was asked for."""
        async with replica_process({**SETTINGS, "threads": threads}) as (address, metrics_url):
            watch = asyncio.create_task(self._follow(address))
            await self._chat(address, min(_WARM_UP_S, seconds))
            await _idle_load(address)
            before = await held_resources(metrics_url)
            await self._chat(address, seconds)
            self.totals.load = await _idle_load(address)
            self.totals.left = await left_over(metrics_url, before)
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
        return self.totals

    async def _chat(self, address: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        async with self._client(address) as client:
            await asyncio.gather(*(self._work(client, address, end) for _ in range(NUM_WORKERS)))

    @contextlib.asynccontextmanager
    async def _client(self, address: str) -> AsyncIterator[RegionClient]:
        async with RegionClient(self._coder, address, via_router=False) as client:
            yield client

    async def _work(self, shared: RegionClient, address: str, end: float) -> None:
        while time.monotonic() < end:
            number = self._random.randrange(len(self._chats))
            roll = self._random.random()
            if roll < 0.1:
                await self._cut(self._ask(shared, number), "cancelled")
            elif roll < 0.2:
                async with self._client(address) as own:
                    await self._cut(self._ask(own, number), "disconnected")
            elif roll < 0.3:
                deadline_ms = self._random.randint(*_DEADLINES_MS)
                await self._wait_for(self._ask(shared, number, deadline_ms))
            elif roll < 0.4:
                await self._ask_badly(shared, number)
            else:
                await self._wait_for(self._ask(shared, number))

    async def _wait_for(self, asking: Coroutine[Any, Any, str]) -> None:
        try:
            async with asyncio.timeout(STARVED_S):
                end = await asking
        except TimeoutError:
            end = "starved"
        self.totals.ends[end] += 1

    async def _cut(self, asking: Coroutine[Any, Any, str], how: str) -> None:
        """Give a session up after a while; one that is done by then has finished."""
        task = asyncio.create_task(asking)
        done, _ = await asyncio.wait([task], timeout=self._random.uniform(0, 2))
        if done:
            self.totals.ends[task.result()] += 1
            return
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        self.totals.ends[how] += 1

    async def _ask_badly(self, client: RegionClient, number: int) -> None:
        """With an opening that has to be refused, or with a damaged draft behind a good one."""
        chat = self._chats[number]
        opening = opening_frame(self._coder, chat.prompt, chat.sampling, self._vocabulary.digest)
        drafts_badly = self._random.random() < _BAD_DRAFTS
        expected: type[OutriderError] = BadTokenBlockError
        if not drafts_badly:
            expected = self._bad_input.spoil(opening)
        end = "nothing"
        try:
            async with client.open(opening) as talk:
                if drafts_badly:
                    talk.draft(self._bad_input.draft())
                while (await talk.receive()).WhichOneof("kind") != "done":
                    pass
        except OutriderError as error:
            end = error.reason
        if end != expected.reason:
            self.totals.wrong_errors.append(f"{end} instead of {expected.reason}")
        self.totals.ends["refused: bad draft" if drafts_badly else "refused: bad opening"] += 1

    async def _ask(self, client: RegionClient, number: int, deadline_ms: int = 0) -> str:
        """How it ended."""
        chat, known = self._chats[number], self.totals.replies.setdefault(number, [])
        priority, seen = self._random.choice(_PRIORITIES), list[int]()

        def drafter(reply: Sequence[int]) -> Sequence[int]:
            seen[:] = reply
            roll = self._random.random()
            if known and roll < 0.5:
                return known[0][len(reply) : len(reply) + 6]
            return self._random.choices(range(200, 2000), k=4) if roll < 0.8 else ()

        try:
            reply = await client.generate(
                chat.prompt,
                chat.sampling,
                digest=self._vocabulary.digest,
                speculation=self._random.choice(_SPECULATION),
                drafter=drafter,
                priority=priority,
                cache_salt=self._random.choice(SALTS),
                deadline_ms=deadline_ms,
            )
        except asyncio.CancelledError:
            self.totals.partial.setdefault(number, []).append(tuple(seen))
            raise
        except DeadlineError:
            return "deadline, before it began"
        if reply.finish_reason == common_pb2.FINISH_REASON_DEADLINE:
            self.totals.partial.setdefault(number, []).append(tuple(reply.ids))
            return "deadline"
        known.append(tuple(reply.ids))
        self._count(reply, common_pb2.Priority.Name(priority).removeprefix("PRIORITY_"))
        return "finished"

    def _count(self, reply: Reply, priority: str) -> None:
        totals = self.totals
        totals.prompt_tokens += reply.prompt_tokens
        totals.cached_tokens += reply.cached_tokens
        moments = (reply.opened_at, *reply.commit_times)
        longest = max(after - before for before, after in pairwise(moments))
        totals.longest_s[priority] = max(longest, totals.longest_s.get(priority, 0.0))

    async def _follow(self, address: str) -> None:
        """Keep a copy of what is cached; events that do not fit it are a KeyError."""
        channel = make_channel(address)
        stored: set[bytes] = set()
        try:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            async for response in stub.WatchKv(inference_pb2.WatchKvRequest()):
                if response.snapshot.first:
                    stored.clear()
                for chain in response.snapshot.chains:
                    stored.update(chain.block_hashes)
                for event in response.events:
                    self.totals.num_kv_events += 1
                    stored.update(event.stored.block_hashes)
                    for block in event.removed.block_hashes:
                        stored.remove(block)
        finally:
            await channel.close()


async def _idle_load(address: str) -> inference_pb2.WatchLoadResponse | None:
    """The first report of a replica without sessions; the last one seen if that takes too long."""
    channel = make_channel(address)
    last: inference_pb2.WatchLoadResponse | None = None
    try:
        async with asyncio.timeout(20):
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            async for last in stub.WatchLoad(inference_pb2.WatchLoadRequest()):
                if not num_sessions(last):
                    return last
    except TimeoutError:
        return last
    finally:
        await channel.close()
    return last


def num_sessions(load: inference_pb2.WatchLoadResponse) -> int:
    """Sessions that a replica has not ended."""
    return load.running_sessions + load.queued_sessions + load.paused_sessions


def num_wrong(
    vocabulary: Vocabulary, chats: Sequence[Chat], totals: SoakTotals, threads: int
) -> int:
    """Replies that are not what the engine says alone, one token at a time; blocks."""
    engine = create_engine(EngineConfig(threads=threads, num_blocks=300))

    def new_reply(params: SamplingParams) -> ReplyText:
        return ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer())

    wrong = 0
    try:
        for number, replies in totals.replies.items():
            chat = chats[number]
            expected = generate(engine, chat.prompt, chat.sampling, new_reply).ids
            wrong += sum(reply != expected for reply in replies)
            begun = totals.partial.get(number, [])
            wrong += sum(reply != expected[: len(reply)] for reply in begun)
    finally:
        engine.close()
    return wrong


_SETTLE_S = 20.0
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class HeldResources:
    """Counted by the process itself, the one scrape included."""

    tasks: int
    threads: int
    files: int

    def beyond(self, before: HeldResources) -> HeldResources:
        """What there is more than before."""
        pairs = zip(astuple(self), astuple(before), strict=True)
        return HeldResources(*(max(0, now - then) for now, then in pairs))


async def held_resources(metrics_url: str) -> HeldResources:
    """Scrape it once."""
    text = await asyncio.to_thread(_read, metrics_url)
    values = {
        family.name: int(family.samples[0].value)
        for family in text_string_to_metric_families(text)
        if family.name.startswith("outrider_process")
    }
    return HeldResources(
        values[names.PROCESS_TASKS], values[names.PROCESS_THREADS], values[names.PROCESS_FILES]
    )


async def left_over(metrics_url: str, before: HeldResources) -> HeldResources:
    """What the process goes on holding more than before; what is on its way out gets a while."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _SETTLE_S
    while True:
        left = (await held_resources(metrics_url)).beyond(before)
        if not any(astuple(left)) or loop.time() > end:
            return left
        await asyncio.sleep(_POLL_S)


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text
