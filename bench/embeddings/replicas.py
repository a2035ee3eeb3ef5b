"""Replicas of ours beside the mesh: in bf16, with one engine or two, and killed under load."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.embeddings.load import Measured, Vectors, closed_loop
from bench.embeddings.model import NAME
from bench.harness import Run
from bench.harness.mesh import Service, mesh, replica_rows
from bench.peers.lineup import rotated
from outrider.codec.vectors import VectorFormat, unpacked
from outrider.rpc import make_channel
from outrider.v1 import embedding_pb2, embedding_pb2_grpc
from outrider.wire import error_from_proto

_CONCURRENCY: Final = 64
_ROUNDS: Final = 3
_NUM_REPLICAS: Final = 3
_PERIOD_S: Final = 2.0
_KILLED_CONCURRENCY: Final = 32
_KILLED_INPUTS: Final = 16


class GrpcSystem:
    """A replica of ours, asked as a router asks it, or a router, asked as an edge asks it."""

    def __init__(self, embed: Any, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self._embed = embed

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Raises OutriderError, grpc.aio.AioRpcError, and AssertionError where an input has two
        answers or none."""
        call = self._embed()
        inputs = [embedding_pb2.EmbedInput(id=n, text=text) for n, text in enumerate(texts)]
        await call.write(embedding_pb2.EmbedRequest(open=embedding_pb2.OpenEmbed()))
        whole = embedding_pb2.EmbedInputs(inputs=inputs)
        await call.write(embedding_pb2.EmbedRequest(inputs=whole))
        await call.done_writing()
        rows: dict[int, Vectors] = {}
        async for answer in call:
            kind = answer.WhichOneof("kind")
            if kind == "vectors":
                told = answer.vectors
                found = unpacked(told.data, told.scales, told.dimensions, VectorFormat(told.format))
                for number, row in zip(told.ids, found, strict=True):
                    assert number not in rows, f"input {number} is answered twice"
                    rows[number] = row
            elif kind == "failed":
                raise error_from_proto(answer.failed.error)
            elif kind == "error":
                raise error_from_proto(answer.error)
            else:
                break
        assert len(rows) == len(texts), f"{len(texts) - len(rows)} inputs have no answer"
        return np.stack([rows[number] for number in range(len(texts))])


@contextlib.asynccontextmanager
async def replica_system(address: str, settings: Mapping[str, Any]) -> AsyncIterator[GrpcSystem]:
    """The replica at this address."""
    async with make_channel(address) as channel:
        stub: embedding_pb2_grpc.EmbeddingServiceAsyncStub
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        yield GrpcSystem(stub.Embed, settings)


@contextlib.asynccontextmanager
async def replica(folder: Path, **values: Any) -> AsyncIterator[GrpcSystem]:
    """One of its own with these settings of `[inference]`. Raises RuntimeError if it does not
    start."""
    # The catalogue's has 256 tokens.
    models = {NAME: {"source": f"dir:{folder}", "embeds": True}}
    async with mesh("embeddings") as made:
        own = {"replica": "one", "model": NAME, **values}
        service = made.service("replica", "inference", own, region="here", models=models)
        await made.start(service)
        async with replica_system(service.address, values) as system:
            yield system


async def compare_engines(run: Run, folder: Path, texts: Sequence[str], seconds: float) -> None:
    """Adds the table of one engine and two, of one thread each; they take turns."""
    found: dict[int, list[Measured]] = {1: [], 2: []}
    async with replica(folder, threads=1) as one, replica(folder, threads=2) as two:
        systems = {1: one, 2: two}
        for system in systems.values():
            await system.embed(texts[:8])
        for turn in range(_ROUNDS):
            for count in rotated(systems, turn):
                done = await closed_loop(
                    systems[count], texts, concurrency=_CONCURRENCY, inputs=1, seconds=seconds
                )
                found[count].append(done)
    table = run.table(
        "Engines of one thread each, in one replica",
        *("engines", "n", "texts/s", "over one", "errors"),
    )
    for count, rounds in found.items():
        rates = [one.texts_per_s for one in rounds]
        ratios = [a.texts_per_s / b.texts_per_s for a, b in zip(rounds, found[1], strict=True)]
        num_errors = sum(one.num_errors for one in rounds)
        table.add(count, len(rounds), table.median(rates), table.median(ratios), num_errors)
    table.note(f"{_CONCURRENCY} requests of a text of 50 tokens at a time. n: rounds.")


async def kill_replicas(run: Run, texts: Sequence[str], seconds: float) -> int:
    """Replicas that are killed, one every two seconds, under load: each input is answered once.
    Adds the table; how many inputs had no answer, or two."""
    async with mesh("embeddings") as made:
        names = [f"here-{number}" for number in range(_NUM_REPLICAS)]
        replicas = [
            made.service(
                name, "inference", {"replica": name, "model": NAME, "threads": 1}, region="here"
            )
            for name in names
        ]
        values = {"replicas": replica_rows(replicas), "max_backoff_s": 0.5}
        endless = {**values, "quarantine": {"max_failures": 1_000_000}}
        router = made.service("router", "router", endless, region="here")
        await made.start(*replicas, router)
        async with make_channel(router.address) as channel:
            stub: embedding_pb2_grpc.EmbeddingRouterServiceAsyncStub
            stub = embedding_pb2_grpc.EmbeddingRouterServiceStub(channel)
            system = GrpcSystem(stub.Embed, {})
            await _until_answered(system)
            kills = asyncio.create_task(_killing(replicas))
            found = await closed_loop(
                *(system, texts),
                concurrency=_KILLED_CONCURRENCY,
                inputs=_KILLED_INPUTS,
                seconds=seconds,
            )
            kills.cancel()
            await asyncio.gather(kills, return_exceptions=True)
    _report_kills(run, found, sum(it.num_kills for it in replicas))
    return found.num_errors * _KILLED_INPUTS


async def _until_answered(system: GrpcSystem) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(Exception):
                await system.embed(["a"])
                return
            await asyncio.sleep(0.1)


async def _killing(replicas: Sequence[Service]) -> None:
    """Never the last one that serves."""
    for victim in itertools.cycle(replicas):
        await asyncio.sleep(_PERIOD_S)
        for other in replicas:
            if other is not victim:
                await other.ready()
        victim.kill()
        victim.spawn()


def _report_kills(run: Run, found: Measured, num_kills: int) -> None:
    table = run.table(
        f"A replica of {_NUM_REPLICAS} is killed every {_PERIOD_S:.0f} s (SIGKILL)",
        *("killed", "inputs answered once", "lost or answered twice", "n", "p50 ms", "p99 ms"),
    )
    times = found.latencies_ms
    lost = found.num_errors * _KILLED_INPUTS
    quantiles = (table.median(times), table.quantile(times, 0.99))
    table.add(num_kills, found.num_texts, lost, len(times), *quantiles)
    table.note(f"{_KILLED_CONCURRENCY} requests of {_KILLED_INPUTS} texts of 8 tokens at a time.")
    for error, count in found.errors.most_common(3):
        table.note(f"{count} requests: {error}")
