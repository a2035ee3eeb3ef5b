"""The systems under test, by the names that tables show, and how each is started."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any, Final

import grpc.aio
import numpy as np

from bench.embeddings.load import System, Vectors
from bench.embeddings.model import NAME
from bench.embeddings.naive import METHOD, Texts, vectors_of
from bench.embeddings.replicas import replica, replica_system
from bench.harness.http_client import HttpClient, until_serving
from bench.harness.local_mesh import LocalMesh, local_mesh
from bench.harness.processes import child, read_json, write_json
from bench.judges.environments import environment, version_of
from outrider.children import PipedProcess
from outrider.cli.local import development_key
from outrider.testing import free_tcp_port

OURS: Final = "outrider, a mesh over HTTP"
REPLICA: Final = "outrider, a replica over gRPC"
REPLICA_BF16: Final = "outrider, a replica in bf16 (all others: f32)"
NAIVE: Final = "naive: in turn, over gRPC"
SENTENCE_TRANSFORMERS: Final = "sentence-transformers"
INFINITY: Final = "infinity-emb over HTTP"
PEERS: Final = (SENTENCE_TRANSFORMERS, INFINITY)
_WORKERS: Final = Path(__file__).parent / "peers"
_ST_PACKAGES: Final = ("sentence-transformers==6.2.0",)
_INFINITY_PACKAGES: Final = ("infinity-emb[torch,server]==0.0.78",)
_START_S: Final = 180.0
_MAX_MESSAGE_BYTES: Final = 64 << 20
MESH_SETTINGS: Final = (
    # All that is measured comes from one client at one address.
    *("edge.http.max_connections=20000", "edge.quic.max_connections_per_address=20000"),
    *("edge.quic.max_chats_per_address=20000", "edge.quic.max_streams_per_address=20000"),
)


@dataclass(frozen=True, slots=True)
class Started:
    """What runs."""

    systems: dict[str, System]
    missing: dict[str, str]
    """Why others do not."""
    mesh: LocalMesh
    num_engines: int
    """Of our replica."""


class HttpSystem:
    """A server of OpenAI's `/v1/embeddings`, ours among them, asked over connections that are kept.
    Vectors are asked for in base64, as OpenAI's own client does. Use as an async context
    manager."""

    def __init__(
        self, port: int, path: str, model: str, settings: Mapping[str, Any], *, key: str = ""
    ) -> None:
        self.settings = settings
        self._where = (port, key, path)
        self._model = model
        self._idle: list[HttpClient] = []

    async def __aenter__(self) -> HttpSystem:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._idle:
            client.close()

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Raises ValueError for an answer that is none, OSError."""
        body = {"model": self._model, "input": list(texts), "encoding_format": "base64"}
        client = self._idle.pop() if self._idle else HttpClient("127.0.0.1", *self._where)
        answer = await client.whole(json.dumps(body).encode())
        self._idle.append(client)
        rows = sorted(json.loads(answer)["data"], key=lambda row: int(row["index"]))
        return np.stack([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in rows])


class Gathered:
    """A library in a process of its own, which is given all texts that wait in one call: the
    library makes its batches of them."""

    def __init__(self, process: PipedProcess, settings: dict[str, Any]) -> None:
        self.settings = settings
        self._process = process
        self._waiting: list[tuple[Sequence[str], asyncio.Future[Vectors]]] = []
        self._serving: asyncio.Task[None] | None = None

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Raises RuntimeError if the process has ended."""
        answer: asyncio.Future[Vectors] = asyncio.get_running_loop().create_future()
        self._waiting.append((texts, answer))
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        return await answer

    async def _serve(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # others that were answered at once ask again first
            asked, self._waiting = self._waiting, []
            texts = list(itertools.chain.from_iterable(each for each, _ in asked))
            write_json(self._process, {"texts": texts})
            try:
                told = await read_json(self._process)
            except RuntimeError as error:
                for _, answer in asked:
                    answer.set_exception(RuntimeError(str(error)))
                return
            found = np.frombuffer(base64.b64decode(told["data"]), "<f4").reshape(told["num"], -1)
            begin = 0
            for each, answer in asked:
                answer.set_result(found[begin : begin + len(each)])
                begin += len(each)


class NaiveSystem:
    """`bench.embeddings.naive`."""

    def __init__(self, channel: grpc.aio.Channel, settings: dict[str, Any]) -> None:
        self.settings = settings
        self._call: Any = channel.unary_unary(METHOD)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Raises grpc.aio.AioRpcError."""
        return vectors_of(await self._call(Texts(texts=texts).SerializeToString()))


@contextlib.asynccontextmanager
async def started(
    folder: Path, threads: int, names: Sequence[str], say: Callable[[str], None]
) -> AsyncIterator[Started]:
    """Ours, the naive one, and the peers of these names that can be had; `say` is told of each."""
    systems: dict[str, System] = {}
    missing: dict[str, str] = {}
    async with contextlib.AsyncExitStack() as stack:
        mesh = stack.enter_context(
            local_mesh(
                model=str(folder),
                regions="here",
                threads=threads,
                plaintext=True,
                http=True,
                settings=MESH_SETTINGS,
            )
        )
        ours = {"threads": threads, "settings": ", ".join(MESH_SETTINGS)}
        port = mesh.state.service("edge")["http_port"]
        key = development_key.read(mesh.state_dir)
        door = HttpSystem(port, "/v1/embeddings", folder.name, ours, key=key)
        systems[OURS] = await stack.enter_async_context(door)
        (row,) = mesh.services("inference")
        opened = replica_system(f"127.0.0.1:{row['port']}", ours)
        systems[REPLICA] = await stack.enter_async_context(opened)
        systems[NAIVE] = await stack.enter_async_context(_naive(folder, threads))
        starts: dict[str, Callable[[Path, int], AbstractAsyncContextManager[System]]] = {
            SENTENCE_TRANSFORMERS: _sentence_transformers,
            INFINITY: _infinity,
            REPLICA_BF16: _bf16,
        }
        for name in (REPLICA_BF16, *names):
            say(f"starting {name}")
            try:
                systems[name] = await stack.enter_async_context(starts[name](folder, threads))
            except (CalledProcessError, RuntimeError, OSError, TimeoutError) as error:
                missing[name] = f"{type(error).__name__}: {error}"
                say(f"{name} takes no part: {missing[name]}")
        yield Started(systems, missing, mesh, threads)


@contextlib.asynccontextmanager
async def _bf16(folder: Path, threads: int) -> AsyncIterator[System]:
    async with replica(folder, threads=threads, precision="bf16") as found:
        yield found


@contextlib.asynccontextmanager
async def _naive(folder: Path, threads: int) -> AsyncIterator[System]:
    port = free_tcp_port()
    module = ("-m", "bench.embeddings.naive")
    given = (str(folder), str(port), str(threads))
    async with child(sys.executable, *module, *given) as process:
        settings = await read_json(process)
        # Not ours: its server takes no keepalive of ours for well meant.
        options = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            yield NaiveSystem(channel, settings)


@contextlib.asynccontextmanager
async def _library(program: Path, script: str, *given: str) -> AsyncIterator[System]:
    command = (str(program), str(_WORKERS / script), *given)
    async with child(*command, environ={"TOKENIZERS_PARALLELISM": "true"}) as process:
        async with asyncio.timeout(_START_S):
            settings = await read_json(process)
        yield Gathered(process, settings)


@contextlib.asynccontextmanager
async def _sentence_transformers(folder: Path, threads: int) -> AsyncIterator[System]:
    programs = await asyncio.to_thread(environment, "sentence-transformers", *_ST_PACKAGES)
    script = "sentence_transformers_worker.py"
    async with _library(programs / "python", script, str(folder), str(threads)) as found:
        yield found


@contextlib.asynccontextmanager
async def _infinity(folder: Path, threads: int) -> AsyncIterator[System]:
    """With its own defaults; where it does not come up with them, without what compiles."""
    programs = await asyncio.to_thread(environment, "infinity", *_INFINITY_PACKAGES)
    async with contextlib.AsyncExitStack() as stack:
        for more in ((), ("--no-bettertransformer", "--no-compile")):
            opened = _infinity_with(programs, folder, threads, *more)
            with contextlib.suppress(RuntimeError):
                system = await stack.enter_async_context(opened)
                break
        else:
            raise RuntimeError("it does not start, with its defaults or without what compiles")
        yield system


@contextlib.asynccontextmanager
async def _infinity_with(
    programs: Path, folder: Path, threads: int, *more: str
) -> AsyncIterator[System]:
    port = free_tcp_port()
    flags = {
        "--model-id": str(folder),
        "--served-model-name": NAME,
        "--engine": "torch",
        "--device": "cpu",
        "--dtype": "float32",
        "--port": str(port),
        "--host": "127.0.0.1",
    }
    command = (str(programs / "infinity_emb"), "v2", *itertools.chain(*flags.items()), *more)
    environ = {"OMP_NUM_THREADS": str(threads), "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    settings = {"version": version_of(programs, "infinity-emb"), "engine": "torch"}
    settings |= {"dtype": "float32", "threads": str(threads), "flags": " ".join(more) or "none"}
    async with child(*command, silent=True, environ=environ) as process:
        await until_serving(process, port)
        async with HttpSystem(port, "/embeddings", NAME, settings) as system:
            yield system
