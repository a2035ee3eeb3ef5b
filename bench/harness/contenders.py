"""The systems that `bench.inference` lets run the same work, each in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.harness.region_client import RegionClient
from outrider.codec.ranks import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.models.vocabulary import Vocabulary
from outrider.rpc import make_channel
from outrider.sampling.params import SamplingParams
from outrider.testing import free_tcp_port
from outrider.v1 import common_pb2

_START_TIMEOUT_S = 180.0
_LINE_LIMIT_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts to answer greedily, `concurrency` at a time."""

    prompts: tuple[tuple[int, ...], ...]
    concurrency: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a contender made of it, in the order of the prompts."""

    seconds: float
    replies: tuple[tuple[int, ...], ...]
    ttft_ms: tuple[float, ...]

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.replies)) / self.seconds


class Contender(Protocol):
    """A system under test."""

    async def run(self, work: Work) -> Outcome: ...


class Pipeline:
    """The peer of `bench.peers.openvino_pipeline`."""

    def __init__(self, process: asyncio.subprocess.Process, stop_ids: Sequence[int]) -> None:
        self._process = process
        self._stop_ids = sorted(stop_ids)

    async def run(self, work: Work) -> Outcome:
        job = {
            "prompts": work.prompts,
            "concurrency": work.concurrency,
            "max_tokens": work.max_tokens,
            "stop_ids": self._stop_ids,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        answer = await _read_line(self._process)
        replies = tuple(tuple(reply) for reply in answer["replies"])
        return Outcome(answer["seconds"], replies, tuple(answer["ttft_ms"]))


@contextlib.asynccontextmanager
async def pipeline(
    model: Path, vocabulary: Vocabulary, *, threads: int, lookup_tokens: int = 0
) -> AsyncIterator[Contender]:
    """Start the pipeline on the IR in `model`; `lookup_tokens` above 0 lets it speculate."""
    arguments = ["bench.peers.openvino_pipeline", str(model), "--threads", str(threads)]
    async with _child(*arguments, "--lookup-tokens", str(lookup_tokens)) as process:
        await _read_line(process)
        yield Pipeline(process, list(vocabulary.stop_ids))


class Replica:
    """An inference service, spoken to as a router does."""

    def __init__(self, client: RegionClient, vocabulary: Vocabulary, speculate: bool) -> None:
        self._client = client
        self._digest = vocabulary.digest
        self._speculation = (
            common_pb2.SPECULATION_REGION_ONLY if speculate else common_pb2.SPECULATION_OFF
        )

    async def run(self, work: Work) -> Outcome:
        slots = asyncio.Semaphore(work.concurrency)
        sampling = SamplingParams(max_tokens=work.max_tokens)

        async def one(prompt: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
            async with slots:
                reply = await self._client.generate(
                    prompt, sampling, digest=self._digest, speculation=self._speculation
                )
            return tuple(reply.ids), reply.ttft_ms

        begin = time.perf_counter()
        done = await asyncio.gather(*(one(prompt) for prompt in work.prompts))
        seconds = time.perf_counter() - begin
        return Outcome(seconds, tuple(ids for ids, _ in done), tuple(ms for _, ms in done))


@contextlib.asynccontextmanager
async def replica(
    vocabulary: Vocabulary, *, threads: int, speculate: bool, exact: bool
) -> AsyncIterator[Contender]:
    """Start an inference service and wait until it serves."""
    port = free_tcp_port()
    settings = {"port": port, "threads": threads, "exact": str(exact).lower(), "log_level": "error"}
    environ = {f"OUTRIDER_INFERENCE_{name.upper()}": str(value) for name, value in settings.items()}
    address = f"127.0.0.1:{port}"
    coder = TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.digest))
    async with _child("services.inference", environ=environ) as process:
        await _serving(address, process)
        async with RegionClient(coder, address, via_router=False) as client:
            yield Replica(client, vocabulary, speculate)


@contextlib.asynccontextmanager
async def _child(
    module: str, *arguments: str, environ: dict[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **(environ or {})},
        limit=_LINE_LIMIT_BYTES,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


async def _read_line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"a peer ended with exit status {await process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


async def _serving(address: str, process: asyncio.subprocess.Process) -> None:
    """Return once the health service says SERVING."""
    channel = make_channel(address)
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest()
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            while process.returncode is None:
                watch = stub.Watch(request, wait_for_ready=True)
                async for answer in watch:
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
        raise RuntimeError(f"a replica ended with exit status {process.returncode}")
    finally:
        await channel.close()
