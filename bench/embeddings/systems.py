"""The systems under test, by the names that tables show, and how each is started."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any, Final

import grpc.aio
import numpy as np

from bench.embeddings.http_system import HttpSystem
from bench.embeddings.load import System, Vectors
from bench.embeddings.model import MAX_TOKENS, NAME, ModelForms
from bench.embeddings.naive import METHOD, Texts, vectors_of
from bench.embeddings.replicas import ReplicaSystem, replica
from bench.harness.local_mesh import LocalMesh, local_mesh
from bench.harness.processes import child, read_json, write_json
from bench.judges.environments import environment, version_of
from bench.peers import llamacpp
from outrider.children import PipedProcess
from outrider.cli.local import development_key
from outrider.rpc import make_channel
from outrider.testing import free_tcp_port

OURS: Final = "outrider, a mesh over HTTP"
REPLICA: Final = "outrider, a replica over gRPC"
REPLICA_BF16: Final = "outrider, a replica in bf16 (all others: f32)"
NAIVE: Final = "naive: in turn, over gRPC"
SENTENCE_TRANSFORMERS: Final = "sentence-transformers"
INFINITY: Final = "infinity-emb over HTTP"
OPENVINO: Final = "openvino_genai.TextEmbeddingPipeline"
LLAMACPP: Final = "llama.cpp over HTTP"
PEERS: Final = (SENTENCE_TRANSFORMERS, INFINITY, OPENVINO, LLAMACPP)
_WORKERS: Final = Path(__file__).parent / "peers"
_ST_PACKAGES: Final = ("sentence-transformers==6.2.0",)
_INFINITY_PACKAGES: Final = ("infinity-emb[torch,server]==0.0.78",)
_GENAI_PACKAGES: Final = (
    *("openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0", "transformers==5.14.1"),
)
_START_S: Final = 180.0
_MAX_MESSAGE_BYTES: Final = 64 << 20
_SLOTS: Final = 16
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
    forms: ModelForms, threads: int, names: Sequence[str], say: Callable[[str], None]
) -> AsyncIterator[Started]:
    """Ours, the naive one, and the peers of these names that can be had; `say` is told of each."""
    systems: dict[str, System] = {}
    missing: dict[str, str] = {}
    async with contextlib.AsyncExitStack() as stack:
        mesh = stack.enter_context(
            local_mesh(
                model=str(forms.folder),
                regions="here",
                threads=threads,
                plaintext=True,
                http=True,
                settings=MESH_SETTINGS,
            )
        )
        ours = {"threads": threads}
        port = mesh.state.service("edge")["http_port"]
        key = development_key.read(mesh.state_dir)
        door = HttpSystem(port, "/v1/embeddings", forms.folder.name, ours, key=key)
        stack.push_async_callback(door.close)
        (replica,) = mesh.services("inference")
        channel = await stack.enter_async_context(make_channel(f"127.0.0.1:{replica['port']}"))
        systems |= {OURS: door, REPLICA: ReplicaSystem(channel, ours)}
        systems[NAIVE] = await stack.enter_async_context(_naive(forms, threads))
        starts: dict[str, Callable[[ModelForms, int], AbstractAsyncContextManager[System]]] = {
            SENTENCE_TRANSFORMERS: _sentence_transformers,
            INFINITY: _infinity,
            OPENVINO: _openvino,
            LLAMACPP: _llamacpp,
            REPLICA_BF16: _bf16,
        }
        for name in (REPLICA_BF16, *names):
            say(f"starting {name}")
            try:
                systems[name] = await stack.enter_async_context(starts[name](forms, threads))
            except (CalledProcessError, RuntimeError, OSError, TimeoutError) as error:
                missing[name] = f"{type(error).__name__}: {error}"
                say(f"{name} takes no part: {missing[name]}")
        yield Started(systems, missing, mesh, threads)


@contextlib.asynccontextmanager
async def _bf16(forms: ModelForms, threads: int) -> AsyncIterator[System]:
    async with replica(forms, threads=threads, precision="bf16") as found:
        yield found


@contextlib.asynccontextmanager
async def _naive(forms: ModelForms, threads: int) -> AsyncIterator[System]:
    port = free_tcp_port()
    module = ("-m", "bench.embeddings.naive")
    given = (str(forms.folder), str(port), str(threads))
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
async def _sentence_transformers(forms: ModelForms, threads: int) -> AsyncIterator[System]:
    programs = await asyncio.to_thread(environment, "sentence-transformers", *_ST_PACKAGES)
    script = "sentence_transformers_worker.py"
    async with _library(programs / "python", script, str(forms.folder), str(threads)) as found:
        yield found


@contextlib.asynccontextmanager
async def _openvino(forms: ModelForms, threads: int) -> AsyncIterator[System]:
    programs = await asyncio.to_thread(environment, "openvino-genai", *_GENAI_PACKAGES)
    script = "openvino_genai_worker.py"
    async with _library(programs / "python", script, str(forms.ir), str(threads)) as found:
        yield found


@contextlib.asynccontextmanager
async def _infinity(forms: ModelForms, threads: int) -> AsyncIterator[System]:
    programs = await asyncio.to_thread(environment, "infinity", *_INFINITY_PACKAGES)
    port = free_tcp_port()
    flags = {
        "--model-id": str(forms.folder),
        "--served-model-name": NAME,
        "--engine": "torch",
        "--device": "cpu",
        "--dtype": "float32",
        "--port": str(port),
        "--host": "127.0.0.1",
    }
    command = (str(programs / "infinity_emb"), "v2", *itertools.chain(*flags.items()))
    environ = {"OMP_NUM_THREADS": str(threads), "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    settings = {"version": version_of(programs, "infinity-emb"), "engine": "torch"}
    settings |= {"dtype": "float32", "threads": str(threads)}
    more = ("--no-model-warmup", "--no-bettertransformer", "--no-compile")
    async with child(*command, *more, silent=True, environ=environ) as process:
        await _serving(process, port, "/health")
        system = HttpSystem(port, "/embeddings", NAME, settings)
        try:
            yield system
        finally:
            await system.close()


@contextlib.asynccontextmanager
async def _llamacpp(forms: ModelForms, threads: int) -> AsyncIterator[System]:
    if not llamacpp.SERVER.is_file():
        raise RuntimeError(f"not installed; {llamacpp.INSTALL}")
    port = free_tcp_port()
    flags = {
        "--model": str(forms.gguf_file),
        "--port": str(port),
        "--threads": str(threads),
        "--threads-batch": str(threads),
        "--pooling": "mean",
        "--batch-size": str(_SLOTS * MAX_TOKENS),
        "--ubatch-size": str(_SLOTS * MAX_TOKENS),
        "--ctx-size": str(_SLOTS * MAX_TOKENS),
        "--parallel": str(_SLOTS),
        "--cache-ram": "0",
    }
    words = itertools.chain(*flags.items())
    async with child(str(llamacpp.SERVER), "--embeddings", *words, silent=True) as process:
        await _serving(process, port, "/health")
        told = {name.strip("-"): value for name, value in flags.items() if "model" not in name}
        told = {**told, "version": llamacpp.VERSION, "weights": "F32"}
        system = HttpSystem(port, "/v1/embeddings", NAME, told)
        try:
            yield system
        finally:
            await system.close()


async def _serving(process: PipedProcess, port: int, path: str) -> None:
    """Raises RuntimeError if it ends, TimeoutError."""
    asked = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    async with asyncio.timeout(_START_S):
        while process.returncode is None:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(asked)
                told = await reader.readline()
                writer.close()
                if b" 200 " in told:
                    return
            await asyncio.sleep(0.1)
    raise RuntimeError(f"it ended with status {process.returncode}")
