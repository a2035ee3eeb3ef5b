"""What stands behind each router under test, and how each is asked by its own protocol."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from bench.harness.http_client import HttpClient
from bench.harness.http_server import MODEL
from bench.harness.load import Answer, send
from bench.harness.mesh import Mesh, Service, mesh, replica_rows, until_placing
from bench.harness.paced_replica import program
from bench.harness.processes import child, read_json
from bench.harness.region_client import RegionClient, opening_frame
from bench.harness.replica import coder_of
from bench.peers import smg
from bench.peers.routing.workload import MAX_TOKENS, Ask, Served, as_text
from outrider.children import PipedProcess
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.sampling.params import SamplingParams
from outrider.testing import free_tcp_port
from outrider.v1 import common_pb2

NUM_REPLICAS: Final = 8
_BLOCK_TOKENS: Final = 32
_NUM_BLOCKS: Final = 640
"""Of a replica: thirty shared beginnings beside sixteen sessions."""
_MIN_ROWS: Final = 2
_START_S: Final = 120.0

Client: TypeAlias = Callable[[Ask, Answer], Awaitable[int]]
"""Asks one router; the answer is told of every arrival. The prompt's cached tokens. Raises the
error that the router refuses with."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a call of the engine takes."""

    fixed_ms: float
    row_ms: float


async def serve(client: Client, asks: Sequence[Ask]) -> list[Served]:
    """All of them, when they are due."""
    cached: dict[Ask, int] = {}

    async def one(ask: Ask, answer: Answer) -> None:
        cached[ask] = await client(ask, answer)

    done = await send(asks, one, due_s=[ask.due_s for ask in asks])
    return [
        Served(answer.token_s[0] - ask.due_s, len(ask.prompt), cached[ask])
        for ask, answer in zip(asks, done.answers, strict=True)
    ]


async def _replicas(made: Mesh, pace: Pace) -> list[Service]:
    """Fresh ones, with empty caches."""
    flags = {
        "fixed-ms": pace.fixed_ms,
        "row-ms": pace.row_ms,
        "block-tokens": _BLOCK_TOKENS,
        "min-rows": _MIN_ROWS,
    }
    values = {"scheduler.max_queue": 4096, "num_blocks": _NUM_BLOCKS, "log_level": "error"}
    started = [
        made.service(
            *(f"r{number}", "inference", {"replica": f"r{number}", **values}),
            region="local",
            program=program(free_tcp_port(), **flags),
        )
        for number in range(NUM_REPLICAS)
    ]
    await made.start(*started)
    return started


class _Sessions:
    """Our router, or one of our replicas, asked as an edge or a router asks it."""

    def __init__(self, address: str, *, via_router: bool) -> None:
        vocabulary = load_vocabulary(DEFAULT_MODEL, ModelStore(default_root()))
        self._coder, self._digest = coder_of(vocabulary), vocabulary.digest
        self.client = RegionClient(self._coder, address, via_router=via_router)
        self.num_open = 0

    async def ask(self, ask: Ask, answer: Answer) -> int:
        """As Client."""
        sampling = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
        opening = opening_frame(self._coder, ask.prompt, sampling, self._digest)
        opening.speculation = common_pb2.SPECULATION_OFF
        self.num_open += 1
        try:
            async with self.client.open(opening) as talk:
                while not (frame := await talk.receive()).HasField("done"):
                    if frame.HasField("commit"):
                        answer.take(())
                return frame.done.usage.cached_tokens
        finally:
            self.num_open -= 1


@contextlib.asynccontextmanager
async def outrider(pace: Pace) -> AsyncIterator[Client]:
    """Our router in front of fresh replicas."""
    async with mesh("routing") as made:
        replicas = await _replicas(made, pace)
        values = {"replicas": replica_rows(replicas), "default_model": DEFAULT_MODEL.name}
        router = made.service("router", "router", values, region="local")
        await made.start(router)
        await until_placing(router, NUM_REPLICAS)
        sessions = _Sessions(router.address, via_router=True)
        async with sessions.client:
            yield sessions.ask


@contextlib.asynccontextmanager
async def balanced(pace: Pace, *, least: bool) -> AsyncIterator[Client]:
    """A floor, without any router: replicas in turn, or the one with the `least` requests of this
    client, which has them all."""
    async with mesh("routing") as made, contextlib.AsyncExitStack() as stack:
        replicas = [
            _Sessions(replica.address, via_router=False) for replica in await _replicas(made, pace)
        ]
        for replica in replicas:
            await stack.enter_async_context(replica.client)
        turns = itertools.cycle(range(len(replicas)))

        async def ask(ask: Ask, answer: Answer) -> int:
            turn = next(turns)
            order = replicas[turn:] + replicas[:turn]
            chosen = min(order, key=lambda one: one.num_open) if least else order[0]
            return await chosen.ask(ask, answer)

        yield ask


@contextlib.asynccontextmanager
async def gateway(pace: Pace, policy: str) -> AsyncIterator[Client]:
    """SMG in front of fresh replicas, with a policy of its own and its own defaults."""
    async with mesh("routing") as made:
        ports = {free_tcp_port(): it.address for it in await _replicas(made, pace)}
        shells = (f"{port}={address}" for port, address in ports.items())
        module = ("-m", "bench.peers.routing.shell")
        async with child(sys.executable, *module, *shells) as shell:
            await read_json(shell)
            port = free_tcp_port()
            command = smg.command(port, [f"http://127.0.0.1:{it}" for it in ports], policy)
            async with child(*command, silent=True) as process:
                await _serving(port, process)
                yield lambda ask, answer: _complete(port, as_text(ask.prompt), answer)


async def _complete(port: int, prompt: str, answer: Answer, max_tokens: int = MAX_TOKENS) -> int:
    """A completion of an OpenAI-compatible server, over a connection of its own; the cached tokens
    of the prompt."""
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    usage: dict[str, Any] = {}
    async with HttpClient("127.0.0.1", port, path="/v1/completions") as client:
        async for event in client.events(body):
            if (event.get("choices") or [{}])[0].get("text"):
                answer.take(())
            usage = event.get("usage") or usage
    if not answer.token_s:
        raise RuntimeError(f"no token came; usage {usage}")
    details = usage.get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


async def _serving(port: int, process: PipedProcess) -> None:
    """Return once a completion comes to an end; its prompt is nobody's beginning. Raises
    RuntimeError, TimeoutError."""
    until = time.monotonic() + _START_S
    while True:
        try:
            await _complete(port, "z", Answer(), 1)
            return
        except (OSError, EOFError, ValueError, RuntimeError) as error:
            if time.monotonic() > until:
                raise TimeoutError("nothing was answered") from error
        if process.returncode is not None:
            raise RuntimeError(f"it ended with exit status {process.returncode}")
        await asyncio.sleep(0.25)
