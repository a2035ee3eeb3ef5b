"""Replicas that are killed, one every two seconds, under load: each input is answered once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from bench.embeddings.load import Measured, Vectors, closed_loop
from bench.embeddings.model import NAME
from bench.embeddings.replicas import embedded
from bench.faults.fleet import HOST, Service
from bench.harness import Run
from bench.harness.run_folder import run_folder
from outrider.rpc import make_channel
from outrider.v1 import embedding_pb2_grpc

_NUM_REPLICAS: Final = 3
_PERIOD_S: Final = 2.0
_CONCURRENCY: Final = 32
_INPUTS: Final = 16


class _Router:
    """A router of ours, asked as an edge asks it."""

    settings: dict[str, Any] = {}  # noqa: RUF012 - nothing changes it

    def __init__(self, stub: embedding_pb2_grpc.EmbeddingRouterServiceAsyncStub) -> None:
        self._stub = stub

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Raises what `embedded` raises."""
        return await embedded(self._stub.Embed(), texts)


async def measure(run: Run, texts: Sequence[str], seconds: float) -> int:
    """Adds the table; returns how many inputs had no answer, or two."""
    async with _fleet() as (replicas, router):
        kills = asyncio.create_task(_killing(replicas))
        found = await closed_loop(
            router, texts, concurrency=_CONCURRENCY, inputs=_INPUTS, seconds=seconds
        )
        kills.cancel()
        await asyncio.gather(kills, return_exceptions=True)
        num_kills = sum(replica.num_kills for replica in replicas)
    _report(run, found, num_kills)
    return found.num_errors * _INPUTS


def _report(run: Run, found: Measured, num_kills: int) -> None:
    table = run.table(
        f"A replica of {_NUM_REPLICAS} is killed every {_PERIOD_S:.0f} s (SIGKILL)",
        *("killed", "inputs answered once", "lost or answered twice", "p50 ms", "p99 ms"),
    )
    tail = (table.quantile(found.latencies_ms, share) for share in (0.5, 0.99))
    lost = found.num_errors * _INPUTS
    table.add(num_kills, found.num_texts, lost, *tail)
    table.note(f"{_CONCURRENCY} requests of {_INPUTS} texts of 8 tokens at a time.")
    for error, count in found.errors.most_common(3):
        table.note(f"{count} requests: {error}")
    run.figures["replicas_killed"] = num_kills
    run.figures["inputs_under_kills"] = found.num_texts


async def _killing(replicas: Sequence[Service]) -> None:
    """Never the last one that serves."""
    for victim in itertools.cycle(replicas):
        await asyncio.sleep(_PERIOD_S)
        for other in replicas:
            if other is not victim:
                await other.ready()
        victim.kill()
        victim.spawn()


@contextlib.asynccontextmanager
async def _fleet() -> AsyncIterator[tuple[list[Service], _Router]]:
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(run_folder("embeddings")).path
        replicas = [
            Service(
                f"here-{number}",
                "inference",
                {"replica": f"here-{number}", "region": "here", "model": NAME, "threads": 1},
                folder,
            )
            for number in range(_NUM_REPLICAS)
        ]
        rows = tuple(
            {"name": it.name, "region": "here", "address": f"{HOST}:{it.port}"} for it in replicas
        )
        values = {"region": "here", "replicas": rows, "max_backoff_s": 0.5}
        router = Service(
            "router", "router", {**values, "quarantine": {"max_failures": 1_000_000}}, folder
        )
        for service in (*replicas, router):
            stack.callback(service.end)
            service.spawn()
        await asyncio.gather(*(service.ready() for service in (*replicas, router)))
        channel = await stack.enter_async_context(make_channel(router.address))
        stub: embedding_pb2_grpc.EmbeddingRouterServiceAsyncStub
        stub = embedding_pb2_grpc.EmbeddingRouterServiceStub(channel)
        made = _Router(stub)
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(Exception):
                    await made.embed(["a"])
                    break
                await asyncio.sleep(0.1)
        yield replicas, made
