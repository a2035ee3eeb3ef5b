"""Our own inference service, asked as a router asks it; and the reference's replies to the same
work."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from bench.harness.processes import child
from bench.harness.region_client import RegionClient
from bench.systems.base import Answer, Request, Work, WorkResult, ask_all
from outrider.children import PipedProcess
from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.models.vocabulary import Vocabulary
from outrider.rpc import make_channel
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.telemetry import names
from outrider.testing import free_tcp_port
from outrider.v1 import common_pb2
from services.inference.config import InferenceConfig
from services.inference.reference import generate

_START_TIMEOUT_S = 180.0
_SETTINGS = {
    "log_level": "error",
    "scheduler.max_sessions": 32,
    "scheduler.max_queue": 4096,
    "kv_bytes": 1 << 30,
    # Sizes for 32 sessions with a draft each, and no compiling beside what is measured.
    "max_fixed_rows": 64,
    "prepare_first": "true",
}


class EngineTime(NamedTuple):
    """What a replica's engine calls took since some beginning."""

    num_ticks: float
    overhead_ms: float
    """CPU time around them."""
    busy_s: float
    """Seconds that the engine computed."""
    idle_s: float
    """Seconds that it waited with sessions to serve."""

    @property
    def busy_share(self) -> float:
        """Of the time with sessions to serve; NaN without any."""
        return self.busy_s / (self.busy_s + self.idle_s) if self.busy_s else math.nan

    def since(self, before: EngineTime) -> EngineTime:
        """What came after `before`."""
        return EngineTime(*(now - then for now, then in zip(self, before, strict=True)))


class Replica:
    """A running inference service."""

    def __init__(
        self,
        client: RegionClient,
        vocabulary: Vocabulary,
        metrics_url: str,
        speculate: bool,
        settings: Mapping[str, object],
    ) -> None:
        self.settings = {**settings, "drafts": speculate}
        self._client = client
        self._digest = vocabulary.digest
        self._metrics_url = metrics_url
        self._speculation = (
            common_pb2.SPECULATION_REGION_ONLY if speculate else common_pb2.SPECULATION_OFF
        )

    async def run(self, work: Work) -> WorkResult:
        """Raises what the replica answers as a typed error."""

        async def ask(request: Request, begin: float) -> Answer:
            reply = await self._client.generate(
                request.prompt,
                sampling(work, request),
                digest=self._digest,
                speculation=self._speculation,
            )
            times = tuple(at - begin for at in reply.commit_times)
            return Answer(tuple(reply.ids), reply.opened_at - begin, times)

        return await ask_all(work, ask)

    async def engine_time(self) -> EngineTime:
        """What its calls took so far."""
        return await asyncio.to_thread(_engine_time, self._metrics_url)


def sampling(work: Work, request: Request) -> SamplingParams:
    """How our side samples a request; the reference needs the same."""
    return SamplingParams(
        temperature=work.temperature,
        seed=request.seed,
        max_tokens=request.max_tokens,
        ignore_eos=work.ignore_eos,
    )


@contextlib.asynccontextmanager
async def replica(
    vocabulary: Vocabulary,
    *,
    threads: int,
    speculate: bool = True,
    exact: bool = True,
    settings: Mapping[str, object] | None = None,
) -> AsyncIterator[Replica]:
    """Start an inference service and wait until it serves; `settings` are more of its own."""
    how = {"threads": threads, "exact": str(exact).lower(), **(settings or {})}
    coder = TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))
    async with (
        replica_process(how) as (address, metrics_url, _),
        RegionClient(coder, address, via_router=False) as client,
    ):
        config = InferenceConfig()
        chunk_tokens = config.scheduler.prefill_chunk_tokens
        known = {"scheduler.prefill_chunk_tokens": chunk_tokens, **_SETTINGS, **how}
        yield Replica(client, vocabulary, metrics_url, speculate, known)


@contextlib.asynccontextmanager
async def replica_process(
    settings: Mapping[str, object], config: Path | None = None
) -> AsyncIterator[tuple[str, str, int]]:
    """Start an inference service with these settings, and those of a file that they do not name;
    its gRPC address, its metrics' URL and its process id, once it serves."""
    port, admin_port = free_tcp_port(), free_tcp_port()
    given = {**_SETTINGS, "port": port, "admin.port": admin_port, **settings}
    environ = {
        f"OUTRIDER_INFERENCE_{name.upper().replace('.', '_')}": str(value)
        for name, value in given.items()
    }
    file = () if config is None else ("--config", str(config))
    command = (sys.executable, "-m", "outrider.cli.main", "serve", "inference", *file)
    async with child(*command, environ=environ) as process:
        await _serving(f"127.0.0.1:{port}", process)
        yield f"127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}/metrics", process.pid


async def _serving(address: str, process: PipedProcess) -> None:
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


def _engine_time(url: str) -> EngineTime:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    found = {
        (sample.name, sample.labels.get("state")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    overhead, total = names.TICK_OVERHEAD, f"{names.ENGINE_TIME}_total"
    return EngineTime(
        num_ticks=found.get((f"{overhead}_count", None), 0.0),
        overhead_ms=found.get((f"{overhead}_sum", None), 0.0) * 1e3,
        busy_s=found.get((total, "busy"), 0.0),
        idle_s=found.get((total, "idle"), 0.0),
    )


def reference(
    vocabulary: Vocabulary, work: Work, requests: Sequence[Request], threads: int
) -> list[tuple[int, ...]]:
    """The ids of each reply; blocks."""
    engine = create_engine(EngineConfig(threads=threads, max_fixed_rows=1))

    def new_reply(params: SamplingParams) -> ReplyText:
        return ReplyText(params, vocabulary.stop_ids, vocabulary.detokenizer())

    try:
        return [
            generate(engine, request.prompt, sampling(work, request), new_reply).ids
            for request in requests
        ]
    finally:
        engine.close()
