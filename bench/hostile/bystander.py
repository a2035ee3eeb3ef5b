"""A client that chats all the while: it shows what an attack costs others."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from bench.hostile.target import Target, certificate_of
from outrider.client import Accepted, Client, Committed, connect
from outrider.errors import OutriderError
from outrider.models.chat import Message
from outrider.sampling.params import SamplingParams

PROMPT = "Name three colours of the rainbow, and say what each reminds you of."
NUM_TOKENS = 32
_WORDS = ("light", "water", "stone", "green", "morning", "seven", "river", "paper")
_PROMPT_WORDS = 3000
_AFTER_ERROR_S = 0.1


@dataclass(slots=True)
class Waits:
    """Waits of the bystander, ms: for each chat's acceptance, its first word, and every next
    word."""

    gaps_ms: list[float] = field(default_factory=list)
    num_chats: int = 0
    errors: list[str] = field(default_factory=list)
    inexact: int = 0
    ttft_ms: list[float] = field(default_factory=list)
    """Of each chat, from asking to its first word."""
    itl_ms: list[float] = field(default_factory=list)
    """From each word to the next: inter-token latency."""

    def clear(self) -> Waits:
        """What was noted so far; it begins anew."""
        noted = replace(self)
        self.gaps_ms, self.ttft_ms, self.itl_ms = [], [], []
        self.errors = []
        self.num_chats = 0
        self.inexact = 0
        return noted


class Chatting:
    """One chat after the other, each of which has to say what the first one said."""

    def __init__(self) -> None:
        self.text = ""
        """Of the first chat, and so of all."""
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()
        self._is_idle = asyncio.Event()
        self.waits = Waits()

    async def ask(self) -> str:
        """One chat, whose waits are noted; what it said. Raises OutriderError, TimeoutError."""
        raise NotImplementedError

    async def chat(self) -> None:
        """One chat."""
        waits = self.waits
        try:
            async with asyncio.timeout(60):
                text = await self.ask()
        except (OutriderError, TimeoutError) as error:
            waits.errors.append(f"{type(error).__name__}: {error}")
            await asyncio.sleep(_AFTER_ERROR_S)
            return
        self.text = self.text or text
        waits.num_chats += 1
        waits.inexact += text != self.text

    async def chat_on(self) -> None:
        """Until it is cancelled."""
        while True:
            if not self._may_go_on.is_set():
                self._is_idle.set()
                await self._may_go_on.wait()
            self._is_idle.clear()
            await self.chat()

    async def pause(self) -> None:
        """Return when the chat under way is over; no other one begins."""
        self._may_go_on.clear()
        await self._is_idle.wait()

    def go_on(self) -> None:
        """After a pause."""
        self._may_go_on.set()


class Bystander(Chatting):
    """One that chats natively."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    async def ask(self) -> str:
        """As Chatting.ask."""
        sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
        began = before = time.monotonic()
        waits, has_begun = self.waits, False
        async with self._client.chat([Message("user", PROMPT)], sampling=sampling) as chat:
            async for event in chat:
                if isinstance(event, Accepted | Committed):
                    now = time.monotonic()
                    waits.gaps_ms.append((now - before) * 1e3)
                    if isinstance(event, Committed):
                        since = before if has_begun else began
                        (waits.itl_ms if has_begun else waits.ttft_ms).append((now - since) * 1e3)
                        has_begun = True
                    before = now
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
        self.waits.clear()


@contextlib.asynccontextmanager
async def bystanding(target: Target) -> AsyncIterator[Bystander]:
    """One that chats for as long as the context lasts."""
    async with connect(target.host, target.port, ca=certificate_of(target)) as client:
        bystander = Bystander(client)
        async with chatting(bystander):
            yield bystander


@contextlib.asynccontextmanager
async def chatting(bystander: Chatting) -> AsyncIterator[None]:
    """It chats for as long as the context lasts."""
    task = asyncio.create_task(bystander.chat_on())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
