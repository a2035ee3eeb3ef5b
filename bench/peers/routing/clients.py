"""Asking: each request when it is due, each router by its own protocol."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Protocol

from bench.harness.region_client import RegionClient, opening_frame
from bench.peers.routing.replica import DIGEST, coder
from bench.peers.routing.workload import MAX_TOKENS, Ask, Served, as_text
from outrider.sampling.params import SamplingParams
from outrider.v1 import common_pb2


class Client(Protocol):
    """One router under test."""

    async def ask(self, ask: Ask) -> tuple[float, int]:
        """When the first token came, on time.perf_counter, and the prompt's cached tokens. Raises
        the error that the router refuses with."""


async def serve(client: Client, asks: Sequence[Ask]) -> list[Served]:
    """All of them, when they are due."""
    begin = time.perf_counter()

    async def one(ask: Ask) -> Served:
        await asyncio.sleep(max(0.0, begin + ask.due_s - time.perf_counter()))
        first_at, cached = await client.ask(ask)
        return Served(first_at - begin - ask.due_s, len(ask.prompt), cached)

    return await asyncio.gather(*(one(ask) for ask in asks))


class Routed:
    """Our router, or one of our replicas. Use as an async context manager."""

    def __init__(self, address: str, *, via_router: bool = True) -> None:
        self._coder = coder()
        self._client = RegionClient(self._coder, address, via_router=via_router)
        self.num_open = 0

    async def __aenter__(self) -> Routed:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def ask(self, ask: Ask) -> tuple[float, int]:
        """As Client.ask."""
        sampling = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
        opening = opening_frame(self._coder, ask.prompt, sampling, DIGEST)
        opening.speculation = common_pb2.SPECULATION_OFF
        first_at, self.num_open = 0.0, self.num_open + 1
        try:
            async with self._client.open(opening) as talk:
                while not (frame := await talk.receive()).HasField("done"):
                    if frame.HasField("commit"):
                        first_at = first_at or time.perf_counter()
                return first_at, frame.done.usage.cached_tokens
        finally:
            self.num_open -= 1


class Direct:
    """Replicas in turn, or the one with the fewest requests of this client, which has them all.
    Use as an async context manager."""

    def __init__(self, addresses: Sequence[str], *, least: bool) -> None:
        self._replicas = [Routed(address, via_router=False) for address in addresses]
        self._least = least
        self._turns = itertools.cycle(range(len(addresses)))
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Direct:
        for replica in self._replicas:
            await self._stack.enter_async_context(replica)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def ask(self, ask: Ask) -> tuple[float, int]:
        """As Client.ask."""
        turn = next(self._turns)
        order = self._replicas[turn:] + self._replicas[:turn]
        chosen = min(order, key=lambda one: one.num_open) if self._least else order[0]
        return await chosen.ask(ask)


class Http:
    """An OpenAI-compatible server of completions."""

    def __init__(self, port: int, model: str, *, letters: bool) -> None:
        """`letters`: prompts are sent as text, a letter for each id; otherwise as ids."""
        self._port = port
        self._model = model
        self._letters = letters

    async def ask(self, ask: Ask) -> tuple[float, int]:
        """As Client.ask."""
        prompt = as_text(ask.prompt) if self._letters else [1000 + id for id in ask.prompt]
        first_at, usage = 0.0, dict[str, Any]()
        async for event in self._stream(prompt, MAX_TOKENS):
            choices = event.get("choices") or [{}]
            if choices[0].get("text"):
                first_at = first_at or time.perf_counter()
            usage = event.get("usage") or usage
        if not first_at:
            raise RuntimeError(f"no token came; usage {usage}")
        details = usage.get("prompt_tokens_details") or {}
        return first_at, int(details.get("cached_tokens") or 0)

    async def answers(self) -> bool:
        """Whether a completion comes to an end. Its prompt is nobody's beginning."""
        prompt = "z" if self._letters else [7]
        try:
            return bool([event async for event in self._stream(prompt, 1)])
        except (ConnectionError, asyncio.IncompleteReadError, RuntimeError):
            return False

    async def _stream(self, prompt: object, max_tokens: int) -> AsyncIterator[dict[str, Any]]:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        try:
            writer.write(_post(body))
            answer = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
            if b" 200 " not in answer:
                raise RuntimeError(f"the server answered {answer.decode()}")
            while line := await reader.readline():  # chunk sizes are lines of no interest
                if line.startswith(b"data: {"):
                    yield json.loads(line[len(b"data: ") :])
        finally:
            writer.close()


def _post(body: object) -> bytes:
    """The whole request, to be written at once: in two writes the second would wait for an
    acknowledgement."""
    data = json.dumps(body).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
    ) + data
