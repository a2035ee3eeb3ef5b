"""Random chats with a replica: right and wrong drafts, tenants, priorities, cancels, lost
connections, deadlines, bad input.

What the replica holds is counted after a first while of it, when pools of threads have grown to
their size, and at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from bench.harness.mesh import HOST
from bench.harness.prompts import load_prompts
from bench.harness.region_client import RegionClient, opening_frame
from bench.harness.replica import replica_process
from bench.soak.held import held_resources, left_over, rss_mib
from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.errors import (
    BadTokenBlockError,
    DeadlineError,
    InvalidSamplingError,
    OutriderError,
    UnknownModelError,
)
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary
from outrider.rpc import make_channel
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
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
_WARM_UP_S = 20.0
_SAMPLE_S = 1.0
_IDLE_S = 20.0
_PRIORITIES = (common_pb2.PRIORITY_LOW, common_pb2.PRIORITY_MEDIUM, common_pb2.PRIORITY_HIGH)
_SPECULATION = (
    common_pb2.SPECULATION_ON,
    common_pb2.SPECULATION_OFF,
    common_pb2.SPECULATION_REGION_ONLY,
)
_Spoil = Callable[[inference_pb2.OpenSession], None]
_BAD_INPUT: tuple[tuple[type[OutriderError], _Spoil | None], ...] = (
    (UnknownModelError, lambda opening: setattr(opening, "model", "no such model")),
    (BadTokenBlockError, lambda opening: setattr(opening.ids.tail, "count", 1)),
    (InvalidSamplingError, lambda opening: setattr(opening.sampling, "temperature", math.nan)),
    (BadTokenBlockError, None),
)
"""Errors, and what spoils an opening so that it has to end with them; None: a good opening, and
behind it a draft of what are no ids."""
_BAD_DRAFT = inference_pb2.Draft(epoch=1, base=0, ids=b"\xff" * 4)


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
    rss_mib: list[float] = field(default_factory=list)
    """Of the replica; one sample a second after the warm-up."""
    num_over: list[int] = field(default_factory=list)
    """Sessions that had ended at those moments, since the start."""
    wrong_errors: list[str] = field(default_factory=list)
    """Of bad input: what came instead of the error that should have."""
    left: Counter[str] = field(default_factory=Counter)
    """When all was over: sessions and KV blocks, and tasks, threads and files beyond those held
    before."""


def make_chats(vocabulary: Vocabulary, seed: int) -> list[Chat]:
    """Questions behind one of three system prompts, greedy and sampled."""
    chance = random.Random(seed)
    texts = [prompt.text for prompt in load_prompts("chat_short", "code", "languages")]
    systems = [prompt.text[:1500] for prompt in load_prompts("document")][:3]
    chats = []
    for number in range(NUM_CHATS):
        system = Message("system", systems[number % 3])
        prompt = vocabulary.encode_chat([system, Message("user", texts[number % len(texts)])])
        temperature, length = chance.choice((0.0, 0.8)), chance.randint(4, 40)
        chats.append(
            Chat(tuple(prompt), SamplingParams(temperature, seed=number, max_tokens=length))
        )
    return chats


class Soak:
    """Workers that chat at random until the time is over."""

    def __init__(self, vocabulary: Vocabulary, chats: Sequence[Chat], seed: int) -> None:
        self._vocabulary = vocabulary
        self._coder = TokenCoder(
            vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest)
        )
        self._chats = chats
        self._random = random.Random(seed)
        self.totals = SoakTotals()

    async def run(self, seconds: float, threads: int) -> SoakTotals:
        """Raises what a session ends with, but for what was asked for."""
        async with replica_process({**SETTINGS, "threads": threads}) as service:
            address, pid = service.address, service.pid
            metrics_url = f"http://{HOST}:{service.ports.admin}/metrics"
            await self._chat(address, min(_WARM_UP_S, seconds))
            await _left_in(address)
            before = await held_resources(metrics_url)
            await asyncio.gather(self._chat(address, seconds), self._sample(pid, seconds))
            self.totals.left = await _left_in(address) + await left_over(metrics_url, before)
        return self.totals

    async def _sample(self, pid: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.totals.rss_mib.append(rss_mib(pid))
            self.totals.num_over.append(self.totals.ends.total())
            await asyncio.sleep(_SAMPLE_S)

    async def _chat(self, address: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        async with RegionClient(self._coder, address, via_router=False) as client:
            await asyncio.gather(*(self._work(client, address, end) for _ in range(NUM_WORKERS)))

    async def _work(self, shared: RegionClient, address: str, end: float) -> None:
        while time.monotonic() < end:
            number = self._random.randrange(len(self._chats))
            roll = self._random.random()
            if roll < 0.1:
                await self._cut(self._ask(shared, number), "cancelled")
            elif roll < 0.2:
                async with RegionClient(self._coder, address, via_router=False) as own:
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
        error, spoil = self._random.choice(_BAD_INPUT)
        if spoil is not None:
            spoil(opening)
        end = "nothing"
        try:
            async with client.open(opening) as talk:
                if spoil is None:
                    talk.draft(_BAD_DRAFT)
                while (await talk.receive()).WhichOneof("kind") != "done":
                    pass
        except OutriderError as told:
            end = told.reason
        if end != error.reason:
            self.totals.wrong_errors.append(f"{end} instead of {error.reason}")
        self.totals.ends["refused: bad opening" if spoil else "refused: bad draft"] += 1

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
        name, waits = common_pb2.Priority.Name(priority), self.totals.longest_s
        moments = (reply.opened_at, *reply.commit_times)
        longest = max(after - before for before, after in pairwise(moments))
        waits[name] = max(longest, waits.get(name, 0.0))
        return "finished"


async def _left_in(address: str) -> Counter[str]:
    """Sessions that a replica has not ended and KV blocks that it has not got back, once it reports
    no session any more, or after _IDLE_S."""
    left = Counter(silent_replica=1)
    async with make_channel(address) as channel:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_IDLE_S):
                stub = inference_pb2_grpc.InferenceServiceStub(channel)
                async for load in stub.WatchLoad(inference_pb2.WatchLoadRequest()):
                    sessions = load.running_sessions + load.queued_sessions + load.paused_sessions
                    blocks = load.kv_blocks_total - load.kv_blocks_free
                    left = +Counter(sessions=sessions, kv_blocks=blocks)
                    if not sessions:
                        break
    return left


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
