"""Clients that chat all the while, natively and over HTTP: they show what an attack costs
others."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from bench.harness.http_client import HttpClient
from bench.harness.load import Answer
from bench.hostile.target import Target, certificate_of
from outrider.client import Client, Committed, connect
from outrider.errors import OutriderError, UnavailableError
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams

PROMPT = "Name three colours of the rainbow, and say what each reminds you of."
NUM_TOKENS = 32
_WORDS = ("light", "water", "stone", "green", "morning", "seven", "river", "paper")
_PROMPT_WORDS = 3000
_TEXT_WORDS = 6000
_BETWEEN_TEXTS_S = 0.1
_AFTER_ERROR_S = 0.1
_TOGETHER_MS = 1.0
"""Words that come within so much of each other come together: there is no gap between them."""


@dataclass(slots=True)
class Waits:
    """What a bystander waited for."""

    ttft_ms: list[float] = field(default_factory=list)
    """Of each chat, from asking to its first word."""
    itl_ms: list[float] = field(default_factory=list)
    """From each word to the next."""
    num_chats: int = 0
    errors: list[str] = field(default_factory=list)
    num_inexact: int = 0

    @property
    def judged_ms(self) -> list[float]:
        """What an aim holds for: the time between words, or of who waits for no words the whole
        time."""
        return self.itl_ms or self.ttft_ms

    def add(self, other: Waits) -> None:
        """Those of another time too."""
        self.ttft_ms += other.ttft_ms
        self.itl_ms += other.itl_ms
        self.errors += other.errors
        self.num_chats += other.num_chats
        self.num_inexact += other.num_inexact


class Bystander:
    """One chat after the other, each of which has to say what the first one said."""

    def __init__(self) -> None:
        self.text = ""
        """Of the first chat, and so of all."""
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()
        self._is_idle = asyncio.Event()
        self._waits = Waits()

    async def ask(self, waits: Waits) -> str:
        """One chat, whose waits are noted; what it said. Raises OutriderError, TimeoutError."""
        raise NotImplementedError

    async def chat_on(self) -> None:
        """Until it is cancelled."""
        while True:
            if not self._may_go_on.is_set():
                self._is_idle.set()
                await self._may_go_on.wait()
            self._is_idle.clear()
            await self._chat()

    async def _chat(self) -> None:
        waits = self._waits
        try:
            async with asyncio.timeout(60):
                text = await self.ask(waits)
        except (OutriderError, TimeoutError) as error:
            waits.errors.append(f"{type(error).__name__}: {error}")
            await asyncio.sleep(_AFTER_ERROR_S)
            return
        self.text = self.text or text
        waits.num_chats += 1
        waits.num_inexact += text != self.text

    def noted(self) -> Waits:
        """The waits since the last call."""
        waits, self._waits = self._waits, Waits()
        return waits

    @contextlib.asynccontextmanager
    async def silent(self) -> AsyncIterator[None]:
        """From the end of the chat under way on, no other one begins."""
        self._may_go_on.clear()
        await self._is_idle.wait()
        try:
            yield
        finally:
            self._is_idle.clear()
            self._may_go_on.set()


class NativeBystander(Bystander):
    """Chats with this project's client."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    async def ask(self, waits: Waits) -> str:
        """As Bystander.ask."""
        sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
        before, gaps = time.monotonic(), waits.ttft_ms
        async with self._client.chat([Message("user", PROMPT)], sampling=sampling) as chat:
            async for event in chat:
                if isinstance(event, Committed):
                    now = time.monotonic()
                    if gaps is waits.ttft_ms or (now - before) * 1e3 > _TOGETHER_MS:
                        gaps.append((now - before) * 1e3)
                    before, gaps = now, waits.itl_ms
            return (await chat.result()).text

    async def warm_up(self, seconds: float, kv_tokens: int) -> None:
        """Chat for a while that nobody measures, after prompts of `kv_tokens` in all, each unlike
        the others: a KV pool of no more than that has been written to wherever it can be, and takes
        no memory for the first time later on."""
        chance, sampling = random.Random(0), SamplingParams(max_tokens=1)
        while kv_tokens > 0:
            text = " ".join(chance.choices(_WORDS, k=_PROMPT_WORDS))
            async with self._client.chat([Message("user", text)], sampling=sampling) as chat:
                kv_tokens -= (await chat.result()).usage.prompt_tokens
        await asyncio.sleep(seconds)
        self.noted()


class HttpBystander(Bystander):
    """Streams over HTTP, and asks for what the native one asks for, so that both have to be told
    the same. Each chat has a connection of its own: the edge closes those that are idle."""

    def __init__(self, target: Target, key: str) -> None:
        super().__init__()
        self._address = (target.host, target.http_port, key)

    async def ask(self, waits: Waits) -> str:
        """As Bystander.ask."""
        asked = {
            "messages": [{"role": "user", "content": PROMPT}],
            **{"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True},
        }
        done = Answer(began_at=time.perf_counter())
        async with HttpClient(*self._address) as client:
            text = await client.chat(asked, done)
        if done.error:
            raise UnavailableError(f"a stream over HTTP: {done.error}")
        waits.ttft_ms.append(done.ttft_ms)
        waits.itl_ms += [gap for gap in done.gaps_ms() if gap > _TOGETHER_MS]
        return text


class TextBystander(Bystander):
    """Has one text of 40 KB after the other tokenized, each unlike the others, and waits for its
    ids."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._chance = random.Random(0)

    async def ask(self, waits: Waits) -> str:
        """As Bystander.ask; it is told ids, and no text."""
        text = " ".join(self._chance.choices(_WORDS, k=_TEXT_WORDS))
        began_at = time.monotonic()
        await self._client.tokenize(text)
        waits.ttft_ms.append((time.monotonic() - began_at) * 1e3)
        await asyncio.sleep(_BETWEEN_TEXTS_S)
        return ""


@contextlib.asynccontextmanager
async def bystanding(
    target: Target, http_key: str, *, has_texts: bool = False
) -> AsyncIterator[dict[str, Bystander]]:
    """Bystanders by name, who chat for as long as the context lasts: the native one first, and one
    over HTTP if the mesh serves that."""
    async with connect(*target.address, ca=certificate_of(target)) as client:
        found: dict[str, Bystander] = {"native": NativeBystander(client)}
        if has_texts:
            found["texts"] = TextBystander(client)
        if target.http_port:
            found["HTTP"] = HttpBystander(target, http_key)
        tasks = [asyncio.create_task(one.chat_on()) for one in found.values()]
        try:
            yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
