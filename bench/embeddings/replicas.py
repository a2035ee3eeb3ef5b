"""Replicas of ours beside the mesh: in bf16, and with one engine or two of one thread each."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import grpc.aio
import numpy as np

from bench.embeddings.load import Measured, Vectors, closed_loop
from bench.embeddings.model import NAME, ModelForms
from bench.harness import Run
from bench.harness.processes import child
from outrider.cli.local.mesh import ProcessSpec, to_toml
from outrider.codec.vectors import VectorFormat, unpacked
from outrider.process import read_ports
from outrider.rpc import make_channel
from outrider.testing import free_tcp_port
from outrider.v1 import embedding_pb2, embedding_pb2_grpc
from outrider.wire import error_from_proto

_START_S: Final = 120.0
_CONCURRENCY: Final = 64


class ReplicaSystem:
    """One replica of ours, asked as a router asks it."""

    def __init__(self, channel: grpc.aio.Channel, settings: dict[str, Any]) -> None:
        self.settings = settings
        self._stub: embedding_pb2_grpc.EmbeddingServiceAsyncStub
        self._stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Raises OutriderError, grpc.aio.AioRpcError."""
        return await embedded(self._stub.Embed(), texts)


async def embedded(call: Any, texts: Sequence[str]) -> Vectors:
    """What a call to a replica or a router answers. Raises OutriderError, and AssertionError where
    an input has two answers or none."""
    inputs = [embedding_pb2.EmbedInput(id=n, text=text) for n, text in enumerate(texts)]
    await call.write(embedding_pb2.EmbedRequest(open=embedding_pb2.OpenEmbed()))
    await call.write(embedding_pb2.EmbedRequest(inputs=embedding_pb2.EmbedInputs(inputs=inputs)))
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
async def replica(forms: ModelForms, **values: Any) -> AsyncIterator[ReplicaSystem]:
    """One of its own with these settings of `[inference]`. Raises RuntimeError if it does not
    start, TimeoutError."""
    port = free_tcp_port()
    given = {"host": "127.0.0.1", "port": port, "replica": "one", "region": "here", "model": NAME}
    spec = ProcessSpec("replica", "inference", {**given, "drain_s": 0.0, **values})
    # The catalogue's has 256 tokens.
    models = {NAME: {"source": f"dir:{forms.folder}", "embeds": True}}
    with tempfile.TemporaryDirectory() as home:
        config, ready = Path(home) / "replica.toml", Path(home) / "ready.json"
        config.write_text(to_toml(spec, models), encoding="utf-8")
        command = (sys.executable, "-m", "outrider.cli.main", "serve", "inference")
        files = ("--config", str(config), "--ready-file", str(ready))
        async with child(*command, *files, silent=True) as process:
            async with asyncio.timeout(_START_S):
                while read_ports(ready) is None:
                    if process.returncode is not None:
                        raise RuntimeError(f"it ended with status {process.returncode}")
                    await asyncio.sleep(0.05)
            async with make_channel(f"127.0.0.1:{port}") as channel:
                yield ReplicaSystem(channel, values)


async def measure(run: Run, forms: ModelForms, texts: Sequence[str], seconds: float) -> None:
    """Adds the table of one engine and two, of one thread each."""
    found: dict[int, Measured] = {}
    for count in (1, 2):
        async with replica(forms, threads=count) as system:
            await system.embed(texts[:8])
            found[count] = await closed_loop(
                system, texts, concurrency=_CONCURRENCY, inputs=1, seconds=seconds
            )
    table = run.table(
        "Engines of one thread each, in one replica",
        *("engines", "texts/s", "over one", "errors"),
    )
    for count, one in found.items():
        ratio = one.texts_per_s / found[1].texts_per_s
        table.add(count, round(one.texts_per_s, 1), f"{ratio:.2f}", one.num_errors)
    table.note(f"{_CONCURRENCY} requests of a text of 50 tokens at a time.")
    run.figures["engines_2_over_1"] = round(found[2].texts_per_s / found[1].texts_per_s, 3)
