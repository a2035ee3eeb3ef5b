"""The processes behind each router under test, started and stopped by context managers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.harness.processes import child, read_json
from bench.peers import dynamo, smg
from bench.peers.routing import replica
from bench.peers.routing.clients import Client, Direct, Http, Routed
from outrider.children import PipedProcess
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import load_vocabulary
from outrider.rpc import make_channel
from outrider.testing import free_tcp_port
from outrider.v1 import router_pb2, router_pb2_grpc

NUM_REPLICAS = 8
_START_S = 120.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a call of the engine takes."""

    fixed_ms: float
    row_ms: float

    def prefill_ms(self, tokens: int) -> float:
        """In one call."""
        return self.fixed_ms + self.row_ms * tokens


@dataclass(frozen=True, slots=True)
class Address:
    """Of one replica or router."""

    grpc: str
    http: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """A process that serves."""

    process: PipedProcess
    address: Address


@contextlib.asynccontextmanager
async def replicas(pace: Pace) -> AsyncIterator[list[Address]]:
    """Fresh ones, with empty caches."""
    async with contextlib.AsyncExitStack() as stack:
        opening = (
            stack.enter_async_context(start_replica(number, pace)) for number in range(NUM_REPLICAS)
        )
        started = await asyncio.gather(*opening)
        yield [one.address for one in started]


@contextlib.asynccontextmanager
async def start_replica(
    number: int, pace: Pace, more: Mapping[str, object] | None = None
) -> AsyncIterator[Started]:
    """One with these settings besides, once it serves."""
    port, admin_port, http_port = free_tcp_port(), free_tcp_port(), free_tcp_port()
    settings = {
        "port": port,
        "admin.port": admin_port,
        "replica": f"r{number}",
        "scheduler.max_queue": 4096,
        "log_level": "error",
        **(more or {}),
    }
    environ = {
        f"OUTRIDER_INFERENCE_{name.upper().replace('.', '_')}": str(value)
        for name, value in settings.items()
    }
    words = (str(http_port), str(pace.fixed_ms), str(pace.row_ms))
    command = (sys.executable, "-m", "bench.peers.routing.replica", *words)
    async with child(*command, environ=environ) as process:
        async with asyncio.timeout(_START_S):
            await read_json(process)
        address = Address(f"127.0.0.1:{port}", f"http://127.0.0.1:{http_port}")
        yield Started(process, address)


@contextlib.asynccontextmanager
async def start_router(
    addresses: Sequence[Address], more: Sequence[str] = ()
) -> AsyncIterator[Started]:
    """Ours in front of these replicas, once it can place on all of them; `more` are lines of its
    settings."""
    async with _scratch() as folder:
        port = free_tcp_port()
        file = folder / "router.toml"
        file.write_text(_router_settings(port, addresses, more), encoding="utf-8")
        command = (sys.executable, "-m", "outrider.cli.main", "serve", "router")
        async with child(*command, "--config", str(file)) as process:
            await _placing(f"127.0.0.1:{port}", len(addresses))
            yield Started(process, Address(f"127.0.0.1:{port}"))


@contextlib.asynccontextmanager
async def outrider(pace: Pace) -> AsyncIterator[Client]:
    """Our router in front of fresh replicas."""
    async with (
        replicas(pace) as addresses,
        start_router(addresses) as router,
        Routed(router.address.grpc) as client,
    ):
        yield client


def _router_settings(port: int, addresses: Sequence[Address], more: Sequence[str]) -> str:
    lines = ["[router]", f"port = {port}", f'default_model = "{replica.MODEL}"']
    lines += ['log_level = "error"', *more]
    for number, address in enumerate(addresses):
        lines += ["[[router.replicas]]", f'name = "r{number}"', 'region = "local"']
        lines += [f'address = "{address.grpc}"']
    return "\n".join(lines) + "\n"


async def _placing(router: str, num_replicas: int) -> None:
    """Return once it can place sessions on so many."""
    channel = make_channel(router)
    try:
        stub = router_pb2_grpc.RouterServiceStub(channel)
        async with asyncio.timeout(_START_S):
            ready = 0
            while ready < num_replicas:
                await asyncio.sleep(0.1)
                request = router_pb2.ListReplicasRequest()
                answer = await stub.ListReplicas(request, wait_for_ready=True)
                ready = sum(one.state == router_pb2.REPLICA_STATE_READY for one in answer.replicas)
    finally:
        await channel.close()


@contextlib.asynccontextmanager
async def balanced(pace: Pace, *, least: bool) -> AsyncIterator[Client]:
    """A floor: no router at all."""
    async with replicas(pace) as addresses:
        async with Direct([address.grpc for address in addresses], least=least) as client:
            yield client


@contextlib.asynccontextmanager
async def gateway(pace: Pace, policy: str) -> AsyncIterator[Client]:
    """SMG in front of them, with a policy of its own and its own defaults."""
    async with replicas(pace) as addresses:
        port = free_tcp_port()
        flags = ("--host", "127.0.0.1", "--port", str(port), "--policy", policy)
        urls = ("--worker-urls", *(address.http for address in addresses))
        quiet = ("--log-level", "error", "--prometheus-port", str(free_tcp_port()))
        async with child(str(smg.SERVER), "launch", *flags, *urls, *quiet, silent=True) as process:
            client = Http(port, replica.MODEL, letters=True)
            await _serving(client, process)
            yield client


@contextlib.asynccontextmanager
async def mocked(pace: Pace, mode: str) -> AsyncIterator[Client]:
    """Dynamo's frontend in front of its mockers."""
    async with _scratch() as folder:
        _model_files(folder / "model")
        _profile(folder / "times.npz", pace)
        port = free_tcp_port()
        environ = {"DYN_FILE_KV": str(folder / "store"), "HF_HUB_OFFLINE": "1"}
        planes = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")
        python = str(dynamo.PYTHON)
        workers = (python, "-m", "dynamo.mocker", *_mocker_flags(folder), *planes)
        front = (python, "-m", "dynamo.frontend", *_frontend_flags(port, mode), *planes)
        async with (
            child(*workers, environ=environ, silent=True) as one,
            child(*front, environ=environ, silent=True) as other,
        ):
            client = Http(port, replica.MODEL, letters=False)
            await _serving(client, one, other)
            yield client


def _mocker_flags(folder: Path) -> tuple[str, ...]:
    return (
        *("--model-path", str(folder / "model"), "--model-name", replica.MODEL),
        *("--num-workers", str(NUM_REPLICAS), "--block-size", str(replica.BLOCK_TOKENS)),
        *("--num-gpu-blocks-override", str(replica.NUM_BLOCKS), "--max-num-seqs", "16"),
        *("--max-num-batched-tokens", "256"),
        *("--planner-profile-data", str(folder / "times.npz")),
    )


def _frontend_flags(port: int, mode: str) -> tuple[str, ...]:
    return (
        *("--http-host", "127.0.0.1", "--http-port", str(port), "--router-mode", mode),
        *("--kv-cache-block-size", str(replica.BLOCK_TOKENS)),
        *("--router-min-initial-workers", str(NUM_REPLICAS)),
    )


_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
_MODEL_FILES: dict[str, dict[str, object]] = {
    "config": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
        **_ENDS,
    },
    "tokenizer_config": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    },
    "generation_config": {**_ENDS},
}


def _model_files(folder: Path) -> None:
    """What Dynamo wants to know of a model: here the default one's tokenizer. Nothing is
    tokenized, but its frontend turns the mockers' random ids into text."""
    folder.mkdir()
    load_vocabulary(DEFAULT_MODEL, ModelStore(default_root())).save(folder)
    for name, content in _MODEL_FILES.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def _profile(path: Path, pace: Pace) -> None:
    """The mocker's timing tables. Its time of decoding goes by tokens in the cache and tokens per
    sequence; their quotient is the sequences, which have two rows each here as with us."""
    tokens = np.arange(0, 4097, 16)
    cached, each = np.linspace(0, 20480, 65), np.linspace(1, 2048, 65)
    sequences = np.clip(cached[:, None] / each[None, :], 1, 16)
    np.savez(
        path,
        prefill_isl=tokens.astype(np.float64),
        prefill_ttft_ms=np.array([pace.prefill_ms(int(count)) for count in tokens]),
        decode_active_kv_tokens=cached,
        decode_context_length=each,
        decode_itl=pace.fixed_ms + 2 * pace.row_ms * sequences,
    )


@contextlib.asynccontextmanager
async def _scratch() -> AsyncIterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="outrider-routing-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _serving(client: Http, *processes: PipedProcess) -> None:
    """Return once it answers a completion."""
    async with asyncio.timeout(_START_S):
        while not await client.answers():
            _check(processes)
            await asyncio.sleep(0.25)


def _check(processes: Sequence[PipedProcess]) -> None:
    for process in processes:
        if process.returncode is not None:
            raise RuntimeError(f"a process ended with exit status {process.returncode}")
