"""Chats that run all the time, each checked token by token against the reference."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from outrider.client import Client, Committed, ReconnectPolicy, connect
from outrider.engines.factory import create_engine
from outrider.errors import OutriderError
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.chat import Message
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from services.inference.config import InferenceConfig
from services.inference.reference import generate

PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short story about a lighthouse keeper and a whale.",
    "List the planets, with one sentence about each of them.",
    "What is a good way to learn a new language as an adult?",
)
LONG_PROMPT = "Sum up what follows. " + " ".join(
    f"Item {number}: the lamp on pier {number * 7 % 19} was lit at dusk and seen from the sea."
    for number in range(16)
)
"""Long enough for its KV, and its token ids, to go into a Redis."""
REPLICA_KILL = "replica, SIGKILL"
_CONNECT_S = 30.0
"""Limit of a client's connecting, which takes long where hundreds do at once."""


@dataclass(frozen=True, slots=True)
class ReferenceChat:
    """One prompt and the reply that the reference gives to it."""

    prompt: str
    sampling: SamplingParams
    text: str
    ids: tuple[int, ...]


def make_reference_chats(
    engine: str, num_tokens: int, prompts: Sequence[str] = PROMPTS
) -> list[ReferenceChat]:
    """Prompts, greedy and sampled, with the reference's replies; blocks for seconds."""
    vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
    config = InferenceConfig(engine=engine, max_fixed_rows=1, threads=2)
    model = create_engine(config.engine_config(vocabulary.size))

    def new_reply(params: SamplingParams) -> ReplyText:
        return ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer())

    references = []
    try:
        for number, prompt in enumerate(prompts):
            for temperature in (0.0, 0.8):
                params = SamplingParams(
                    temperature=temperature,
                    seed=1000 + number,
                    max_tokens=num_tokens,
                    ignore_eos=True,
                )
                ids = vocabulary.encode_chat([Message("user", prompt)])
                said = generate(model, ids, params, new_reply)
                references.append(ReferenceChat(prompt, params, said.text, tuple(said.ids)))
    finally:
        model.close()
    return references


@dataclass(slots=True, eq=False)
class RunningChat:
    """One chat under way."""

    began_at: float
    times: list[float] = field(default_factory=list)
    """When its commits came: time.monotonic(), seconds."""
    hits: list[tuple[str, float]] = field(default_factory=list)
    """Faults that interrupted it: name of the fault, length of the pause in ms."""

    @property
    def last_at(self) -> float:
        """When its last commit came; before the first, when it was asked."""
        return self.times[-1] if self.times else self.began_at

    def longest_pause_ms(self, since: float) -> float:
        """The longest time without a commit that ended after `since`, time.monotonic()."""
        pairs = pairwise((self.began_at, *self.times))
        return 1e3 * max((after - before for before, after in pairs if after > since), default=0.0)


@dataclass(slots=True)
class ChatTotals:
    """Counts over all chats."""

    chats: int = 0
    tokens: int = 0
    lost: int = 0
    """Tokens that replies are short of the reference's."""
    doubled: int = 0
    """Tokens that replies have beyond the reference's."""
    inexact: int = 0
    """Replies that differ from the reference's in any token id or character."""
    errors: list[str] = field(default_factory=list)
    once_hit: list[tuple[float, float]] = field(default_factory=list)
    """Of chats that were interrupted once, by the death of their replica: length of the pause, and
    how long the next replica queued and recomputed prompt and reply so far; ms."""

    @property
    def above_recompute_ms(self) -> list[float]:
        """Of those chats: the pause without that time."""
        return [max(0.0, pause - again) for pause, again in self.once_hit]

    @property
    def problem(self) -> str:
        """What went wrong; "" if every reply was the reference's."""
        wrong = {
            "chats failed": len(self.errors),
            "tokens lost": self.lost,
            "tokens doubled": self.doubled,
            "replies differ": self.inexact,
        }
        told = [f"{count} {what}" for what, count in wrong.items() if count]
        return ", ".join(told) if told else ""


class Served(Protocol):
    """What is chatted with."""

    @property
    def urls(self) -> Sequence[str]:
        """Of its edges."""

    @property
    def ca(self) -> Path:
        """Whom their clients trust."""

    @property
    def key(self) -> str:
        """An API key of theirs; "": they need none."""

    @property
    def has_tokenizers(self) -> bool:
        """Whether clients may send text without tokenizing it."""


class ChatLoad:
    """Keeps `num_chats` chats going for as long as the context lasts, and compares every reply with
    the reference."""

    def __init__(self, served: Served, references: list[ReferenceChat], num_chats: int) -> None:
        self._served = served
        self._references = references
        self._num_chats = num_chats
        self._random = random.Random(7)
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []
        self._num_connected = 0
        self._all_connected = asyncio.Event()
        self.running: set[RunningChat] = set()
        self.totals = ChatTotals()

    async def __aenter__(self) -> ChatLoad:
        """Returns once every client is connected: faults are for chats, not for handshakes."""
        self._tasks = [asyncio.create_task(self._work(n)) for n in range(self._num_chats)]
        connecting = asyncio.create_task(self._all_connected.wait())
        try:
            await asyncio.wait({connecting, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
            self.check()
        except BaseException:
            for task in self._tasks:
                task.cancel()
            raise
        finally:
            connecting.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    def check(self) -> None:
        """Raise the exception of a worker that failed."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _work(self, number: int) -> None:
        edges = list(self._served.urls)
        first, *others = edges[number % len(edges) :] + edges[: number % len(edges)]
        patient = ReconnectPolicy(give_up_after_s=60)
        async with connect(
            first,
            others=others,
            ca=self._served.ca,
            key=self._served.key,
            reconnect=patient,
            timeout_s=_CONNECT_S,
        ) as client:
            self._num_connected += 1
            if self._num_connected == self._num_chats:
                self._all_connected.set()
            # So that they all run at once: the first would have ended before the last connects.
            await self._all_connected.wait()
            while not self._is_over:
                thin = self._served.has_tokenizers and self._random.random() < 0.5
                await self._chat(client, self._random.choice(self._references), thin=thin)

    async def _chat(self, client: Client, reference: ReferenceChat, *, thin: bool) -> None:
        run = RunningChat(time.monotonic())
        self.running.add(run)
        self.totals.chats += 1
        try:
            message = Message("user", reference.prompt)
            asked = client.chat([message], sampling=reference.sampling, thin=thin)
            async with asked as chat:
                async for event in chat:
                    if isinstance(event, Committed):
                        run.times.append(time.monotonic())
                result = await chat.result()
            self._count(reference, result.ids, result.text)
            if [what for what, _ in run.hits] == [REPLICA_KILL]:
                replica = result.replica_timings
                again_ms = replica.queue_ms + replica.prefill_ms
                self.totals.once_hit.append((run.hits[0][1], again_ms))
        except OutriderError as error:
            self.totals.errors.append(f"{error.reason}: {error.message}")
        finally:
            self.running.discard(run)

    def _count(self, reference: ReferenceChat, ids: tuple[int, ...], text: str) -> None:
        totals = self.totals
        totals.tokens += len(ids)
        totals.lost += max(0, len(reference.ids) - len(ids))
        totals.doubled += max(0, len(ids) - len(reference.ids))
        totals.inexact += ids != reference.ids or text != reference.text
