"""llama.cpp's server, built here for this machine's own instructions, asked over its own HTTP API.

Installing it makes `.bench-venvs/llamacpp` (cmake and ninja from the package index, the sources of
llama.cpp from llama-cpp-python's source distribution, a C++ compiler from the machine), builds
`llama-server` and `llama-quantize`, and requantises the default model to Q4_0, llama.cpp's fastest
layout. There are 210 files to compile, which took 20 minutes on two cores busy with other work.

Every slot has room for the longest request here. The host-memory prompt cache is off: no prompt
comes twice, and filling it would only cost time; a slot still reuses the prefix it holds.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import tarfile
import venv
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.harness.http_client import HttpClient, until_serving
from bench.harness.load import Answer, Request, Setup, Work, WorkResult, ask_all
from bench.harness.processes import child
from bench.peers.installing import HOME as ENVIRONMENTS
from bench.peers.installing import Peer, pip
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root
from outrider.testing import free_tcp_port

HOME = ENVIRONMENTS / "llamacpp"
SERVER = HOME / "bin" / "llama-server"
QUANTIZE = HOME / "bin" / "llama-quantize"
BEST_MODEL = HOME / "models" / "best.Q4_0.gguf"
BEST_LAYOUT = "Q4_0"

_TOOLS = ("cmake>=3.28,<5", "ninja>=1.11,<2")
VERSION = "llama-cpp-python 0.3.36"
"""Whose source distribution has llama.cpp's."""
SOURCE = (
    "llama-cpp-python==0.3.36 "
    "--hash=sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
)
_OPTIONS = (
    *("CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=OFF", "GGML_NATIVE=ON"),
    *("LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF", "LLAMA_BUILD_APP=OFF"),
    *("LLAMA_BUILD_UI=OFF", "LLAMA_USE_PREBUILT_UI=OFF", "LLAMA_OPENSSL=OFF"),
)
_WITHOUT_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
"""For compilers of x86-64: this llama.cpp's kernels for AMX end the server with a general
protection fault at its first call (github.com/ggml-org/llama.cpp/pull/26954 names the cause), so
that it computes with AVX-512 on CPUs that have AMX."""


_SLOTS: Final = 32
_SLOT_TOKENS: Final = 2048
_MAX_PART_TOKENS: Final = 512
"""Of a batch, computed at once: the server's own default."""


def same_model() -> Path:
    """The GGUF our own engine was converted from."""
    return ModelStore(default_root()).ensure(DEFAULT_MODEL.source).path


def _install() -> None:
    """Build and requantise."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise RuntimeError("llama.cpp needs a C++ compiler: install g++ or clang++ first")
    tools = HOME / "venv"
    venv.create(tools, clear=True, with_pip=True)
    own = pip(tools / "bin" / "python")
    subprocess.run([*own, "install", *_TOOLS], check=True)
    work = HOME / "build"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    _build(_sources(own, work), work / "out", tools / "bin")
    _requantise()
    shutil.rmtree(work)


def _sources(own: tuple[str, ...], work: Path) -> Path:
    """The folder of llama.cpp inside the unpacked source distribution."""
    pinned = work / "source.txt"
    pinned.write_text(SOURCE + "\n", encoding="ascii")
    download = ("download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation")
    subprocess.run(
        [*own, "install", "scikit-build-core[pyproject]>=0.9.2"], check=True
    )  # pip asks the distribution's own build backend for its metadata
    subprocess.run([*own, *download, "-r", str(pinned), "-d", str(work)], check=True)
    (archive,) = work.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(work, filter="data")
    (found,) = work.glob("*/vendor/llama.cpp")
    return found


def _build(source: Path, out: Path, tools: Path) -> None:
    """Compile the two programs and copy them into place."""
    environ = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    cmake = str(tools / "cmake")
    settings = [f"-D{option}" for option in _OPTIONS]
    if platform.machine() == "x86_64":
        settings += [f"-DCMAKE_{language}_FLAGS={_WITHOUT_AMX}" for language in ("C", "CXX")]
    configure = [cmake, "-S", str(source), "-B", str(out), "-G", "Ninja", *settings]
    subprocess.run(configure, check=True, env=environ, stdout=subprocess.DEVNULL)
    names = [SERVER.name, QUANTIZE.name]
    jobs = str(len(os.sched_getaffinity(0)))
    build = [cmake, "--build", str(out), "--parallel", jobs, "--target", *names]
    subprocess.run(build, check=True, env=environ)
    SERVER.parent.mkdir(exist_ok=True)
    for name in names:
        shutil.copy2(out / "bin" / name, SERVER.parent / name)


def _requantise() -> None:
    BEST_MODEL.parent.mkdir(exist_ok=True)
    partial = BEST_MODEL.with_suffix(".part")
    command = [str(QUANTIZE), "--allow-requantize", str(same_model()), str(partial), BEST_LAYOUT]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    partial.rename(BEST_MODEL)


PEER: Final = Peer(
    *("llamacpp", VERSION, 20.0),
    is_installed=lambda: SERVER.is_file() and BEST_MODEL.is_file(),
    install=_install,
)


class LlamaServer:
    """A running `llama-server`."""

    def __init__(self, port: int, settings: Mapping[str, object]) -> None:
        self.settings = settings
        self.port = port

    async def run(self, work: Work) -> WorkResult:
        """Raises ValueError when the server refuses a request."""

        async def ask(request: Request, answer: Answer) -> None:
            async with HttpClient("127.0.0.1", self.port, path="/completion") as client:
                async for event in client.events(_body(work, request)):
                    if event.get("tokens"):
                        answer.take(event["tokens"])

        return await ask_all(work, ask)


def _body(work: Work, request: Request) -> dict[str, Any]:
    """Sampling by temperature alone, as the others do."""
    return {
        "prompt": request.prompt,
        "n_predict": request.max_tokens,
        "temperature": work.temperature,
        "samplers": ["temperature"],
        "seed": request.seed,
        "ignore_eos": work.ignore_eos,
        "return_tokens": True,
        "stream": True,
    }


@contextlib.asynccontextmanager
async def llama_server(
    model: Path, setup: Setup, *, speculation: str = "none"
) -> AsyncIterator[LlamaServer]:
    """Start the server on this GGUF and wait until it has loaded it. Its own default is a batch of
    2,048 tokens in parts of 512. `speculation` is its `--spec-type`, whose settings are its own
    defaults."""
    flags = {
        "--model": model,
        "--threads": setup.threads,
        "--threads-batch": setup.threads,
        "--batch-size": setup.chunk_tokens,
        "--ubatch-size": min(setup.chunk_tokens, _MAX_PART_TOKENS),
        "--parallel": _SLOTS,
        "--ctx-size": _SLOTS * _SLOT_TOKENS,
        "--cache-ram": 0,
        "--spec-type": speculation,
    }
    async with serving(flags) as port:
        told = {name.strip("-"): value for name, value in flags.items()}
        yield LlamaServer(port, {**told, "model": model.name, "version": VERSION})


@contextlib.asynccontextmanager
async def serving(flags: Mapping[str, object], *more: str) -> AsyncIterator[int]:
    """The port of a server with these flags, once it serves. Raises RuntimeError if it ends."""
    port = free_tcp_port()
    words = [str(word) for pair in flags.items() for word in pair]
    command = (str(SERVER), "--port", str(port), *words, *more)
    async with child(*command, silent=True) as process:
        await until_serving(process, port)
        yield port
