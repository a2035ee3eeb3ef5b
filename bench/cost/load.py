"""Clients of many chats at once, in a process of their own.

    python -m bench.cost.load

Reads one job as a line of JSON, opens its chats, and prints `{"steady": true}` once each of them
has had some tokens. A chat that ends is followed by another. Every further line on its input is
answered with what came since the line before: the times between two tokens' arrivals in a chat
among it. At the end of its input it ends all chats: a client that only vanishes may come back, and
an edge lets its chats go on meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import uvloop

from bench.harness.http_client import HttpClient
from outrider.client import Client, Committed, Message, SamplingParams, connect
from outrider.errors import OutriderError

STEADY_EVENTS: Final = 4
"""A chat is steady when so many commits of its have come."""
_MAX_TOKENS: Final = 4000
_CLOSE_S: Final = 20.0
"""For ending all chats."""
_OPENING: Final = 24
"""Chats that may wait for their first token at once."""


@dataclass(slots=True)
class Job:
    """What is to be opened, and where."""

    protocol: str
    """native, or http."""
    host: str
    port: int
    chats: int
    per_connection: int
    """Chats on one connection, native protocol alone: HTTP has one on each."""
    provisional: bool
    ca: str = ""
    key: str = ""
    model: str = ""
    nonce: int = 0
    """In all questions: no earlier job's replies are like its own."""


@dataclass(slots=True)
class Counts:
    """What came since the last reading."""

    events: int = 0
    """Commits, or events of an SSE stream that had text."""
    failed: int = 0
    error: str = ""
    gaps_ms: array[float] = field(default_factory=lambda: array("f"))


class Load:
    """All chats of a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._counts = Counts()
        self._num_steady = 0
        self._opening = asyncio.Semaphore(_OPENING)
        self.steady = asyncio.Event()

    async def run(self) -> None:
        """Until it is cancelled."""
        job = self._job
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            clients: list[Client] = []
            for number in range(job.chats):
                if job.protocol == "native" and number % job.per_connection == 0:
                    connection = connect(job.host, job.port, ca=job.ca, key=job.key)
                    clients.append(await stack.enter_async_context(connection))
                chats = self._native(number, clients[-1]) if clients else self._http(number)
                group.create_task(self._follow(chats))

    def take(self) -> Counts:
        """What came since it was called last."""
        counts, self._counts = self._counts, Counts()
        return counts

    async def _follow(self, chats: AsyncIterator[AsyncIterator[bool]]) -> None:
        """Count what comes in one chat after the other."""
        async for events in chats:
            last, seen, is_opening = 0.0, 0, True
            await self._opening.acquire()
            try:
                async for is_commit in events:
                    counts = self._counts
                    if not is_commit:
                        continue
                    now = time.perf_counter()
                    if is_opening:
                        self._opening.release()
                        is_opening = False
                    else:
                        counts.gaps_ms.append((now - last) * 1e3)
                    last = now
                    counts.events += 1
                    seen += 1
                    if seen == STEADY_EVENTS:
                        self._num_steady += 1
                        if self._num_steady >= self._job.chats:
                            self.steady.set()
            except (OutriderError, OSError, EOFError, ValueError) as error:
                self._counts.failed += 1
                self._counts.error = f"{type(error).__name__}: {error}"
                await asyncio.sleep(0.5)
            finally:
                if is_opening:
                    self._opening.release()

    async def _native(self, number: int, client: Client) -> AsyncIterator[AsyncIterator[bool]]:
        sampling = SamplingParams(temperature=0.0, max_tokens=_MAX_TOKENS, ignore_eos=True)
        turn = 0
        while True:
            messages = [Message("user", _question(self._job.nonce, number, turn))]
            turn += 1

            async def events(messages: list[Message] = messages) -> AsyncIterator[bool]:
                chat = client.chat(messages, sampling=sampling, provisional=self._job.provisional)
                async with chat:
                    async for event in chat:
                        yield isinstance(event, Committed)

            yield events()

    async def _http(self, number: int) -> AsyncIterator[AsyncIterator[bool]]:
        job = self._job
        turn = 0
        while True:
            body = {
                "model": job.model,
                "messages": [{"role": "user", "content": _question(job.nonce, number, turn)}],
                "temperature": 0,
                "max_tokens": _MAX_TOKENS,
                "ignore_eos": True,
                "stream": True,
            }
            turn += 1

            async def events(body: dict[str, Any] = body) -> AsyncIterator[bool]:
                async with HttpClient(job.host, job.port, job.key) as client:
                    async for line in client.lines(json.dumps(body).encode()):
                        if line.startswith(b"data: {"):
                            if is_error(line):
                                raise ValueError(line.decode(errors="replace")[:1000])
                            yield True

            yield events()


def is_error(line: bytes) -> bool:
    """Whether an event of a completion, `data: {...}`, says that it failed; a reply may have the
    word "error" in it."""
    if b'"error"' not in line:
        return False
    told = json.loads(line.removeprefix(b"data: "))
    return bool(told.get("error")) or told.get("object") == "error"


def _question(nonce: int, number: int, turn: int) -> str:
    return f"{nonce}.{number}.{turn} is this chat. Tell a story that does not end."


@asynccontextmanager
async def _lines() -> AsyncIterator[asyncio.StreamReader]:
    """Standard input."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    try:
        yield reader
    finally:
        transport.close()


async def main() -> None:
    async with _lines() as reader:
        job = Job(**json.loads(await reader.readline()))
        load = Load(job)
        running = asyncio.create_task(load.run())
        running.add_done_callback(_ended)
        telling = asyncio.create_task(_tell_steady(load))
        while await reader.readline():
            counts = load.take()
            answer: dict[str, object] = {
                name: getattr(counts, name) for name in Counts.__slots__ if name != "gaps_ms"
            }
            answer["gaps_ms"] = [round(gap, 2) for gap in counts.gaps_ms]
            print(json.dumps(answer), flush=True)
        telling.cancel()
        running.remove_done_callback(_ended)
        running.cancel()
        await asyncio.wait((running,), timeout=_CLOSE_S)
        os._exit(0)


async def _tell_steady(load: Load) -> None:
    await load.steady.wait()
    print(json.dumps({"steady": True}), flush=True)


def _ended(running: asyncio.Task[None]) -> None:
    """It runs until it is cancelled: anything else is a defect."""
    traceback.print_exception(running.exception())
    os._exit(1)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
