"""Our own inference service as a system under test, asked as a router asks it; and the reference's
replies to the same work."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from bench.harness.load import Answer, Request, Work, WorkResult, ask_all
from bench.harness.mesh import Service, mesh
from bench.harness.region_client import RegionClient, Reply
from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.engines.config import EngineConfig
from outrider.engines.factory import create_engine
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.sampling.reply import ReplyText
from outrider.telemetry import names
from outrider.v1 import common_pb2
from services.inference.reference import generate

SETTINGS: Mapping[str, object] = {
    "log_level": "error",
    "scheduler.max_sessions": 32,
    "scheduler.max_queue": 4096,
    "kv_bytes": 1 << 30,
    # Sizes for 32 sessions with a draft each, and no compiling beside what is measured.
    "max_fixed_rows": 64,
    "prepare_first": True,
}
"""Settings of replicas started here that differ from the defaults."""


class EngineTime(NamedTuple):
    """Time of a replica's engine calls in some period."""

    num_ticks: float
    overhead_ms: float
    """CPU time around them."""
    busy_s: float
    """Seconds that the engine computed."""
    idle_s: float
    """Seconds that it waited with sessions to serve."""

    @property
    def busy_share(self) -> float:
        """Share of the time with sessions to serve in which the engine computed; NaN without
        any."""
        return self.busy_s / (self.busy_s + self.idle_s) if self.busy_s else math.nan

    def since(self, before: EngineTime) -> EngineTime:
        """The difference to the earlier `before`."""
        return EngineTime(*(now - then for now, then in zip(self, before, strict=True)))


async def engine_time(service: Service) -> EngineTime:
    """Time of a replica's engine calls since it started."""
    samples = await service.samples()
    found = {(sample.name, sample.labels.get("state")): sample.value for sample in samples}
    overhead, total = names.TICK_OVERHEAD, f"{names.ENGINE_TIME}_total"
    return EngineTime(
        num_ticks=found.get((f"{overhead}_count", None), 0.0),
        overhead_ms=found.get((f"{overhead}_sum", None), 0.0) * 1e3,
        busy_s=found.get((total, "busy"), 0.0),
        idle_s=found.get((total, "idle"), 0.0),
    )


class Replica:
    """A running inference service."""

    def __init__(
        self,
        service: Service,
        client: RegionClient,
        vocabulary: Vocabulary,
        speculate: bool,
        settings: Mapping[str, object],
    ) -> None:
        self.settings = {**settings, "drafts": speculate}
        self._service = service
        self._client = client
        self._digest = vocabulary.digest
        self._speculation = (
            common_pb2.SPECULATION_REGION_ONLY if speculate else common_pb2.SPECULATION_OFF
        )

    async def run(self, work: Work) -> WorkResult:
        """Answer the requests of `work`. Raises the replica's error as a typed one."""

        async def ask(request: Request, answer: Answer) -> None:
            reply = Reply()
            try:
                await self._client.generate(
                    request.prompt,
                    sampling(work, request),
                    digest=self._digest,
                    speculation=self._speculation,
                    reply=reply,
                )
            finally:
                answer.ids = reply.ids
                answer.token_s = [at - answer.began_at for at in reply.commit_times]

        return await ask_all(work, ask)

    async def engine_time(self) -> EngineTime:
        """Time of its engine calls since it started."""
        return await engine_time(self._service)


def sampling(work: Work, request: Request) -> SamplingParams:
    """How our side samples a request; the reference needs the same."""
    return SamplingParams(
        temperature=work.temperature,
        seed=request.seed,
        max_tokens=request.max_tokens,
        ignore_eos=work.ignore_eos,
    )


def coder_of(vocabulary: Vocabulary) -> TokenCoder:
    """Coder of the vocabulary's ids, the same as on edges and routers."""
    return TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))


@contextlib.asynccontextmanager
async def replica(
    vocabulary: Vocabulary, *, threads: int, speculate: bool = True, exact: bool = True
) -> AsyncIterator[Replica]:
    """Start an inference service and wait until it serves."""
    how = {**SETTINGS, "threads": threads, "exact": exact}
    async with (
        replica_process(how) as service,
        RegionClient(coder_of(vocabulary), service.address, via_router=False) as client,
    ):
        yield Replica(service, client, vocabulary, speculate, how)


@contextlib.asynccontextmanager
async def replica_process(settings: Mapping[str, object]) -> AsyncIterator[Service]:
    """An inference service alone, with these settings besides `SETTINGS`, once it serves."""
    values = {"replica": "replica", "region": "here", **SETTINGS, **settings}
    async with mesh("replica") as made:
        service = made.service("replica", "inference", values)
        await made.start(service)
        yield service


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
