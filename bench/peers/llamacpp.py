"""llama.cpp's server, built here for this machine's own instructions.

    .venv/bin/python -m bench.peers.llamacpp --install

makes `.bench-venvs/llamacpp` (cmake and ninja from the package index, the sources of llama.cpp
from llama-cpp-python's source distribution, a C++ compiler from the machine), builds `llama-server`
and `llama-quantize`, and requantises the default model to Q4_0, llama.cpp's fastest layout. Nothing
else of this project needs any of it. There are 210 files to compile, which took 20 minutes on two
cores busy with other work.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.store import ModelStore, default_root

HOME = Path(__file__).parents[2] / ".bench-venvs" / "llamacpp"
SERVER = HOME / "bin" / "llama-server"
QUANTIZE = HOME / "bin" / "llama-quantize"
BEST_MODEL = HOME / "models" / "best.Q4_0.gguf"
BEST_LAYOUT = "Q4_0"
INSTALL = "`.venv/bin/python -m bench.peers.llamacpp --install` installs it"

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


def installed() -> bool:
    """Whether the server and the requantised model are there."""
    return SERVER.is_file() and BEST_MODEL.is_file()


def same_model() -> Path:
    """The GGUF our own engine was converted from."""
    return ModelStore(default_root()).ensure(DEFAULT_MODEL.source).path


def install(jobs: int) -> None:
    """Build and requantise. Raises CalledProcessError where a step fails, and RuntimeError for
    want of a compiler."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise RuntimeError("llama.cpp needs a C++ compiler: install g++ or clang++ first")
    tools = HOME / "venv"
    venv.create(tools, clear=True, with_pip=True)
    pip = (str(tools / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q")
    subprocess.run([*pip, "install", *_TOOLS], check=True)
    work = HOME / "build"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    _build(_sources(pip, work), work / "out", tools / "bin", jobs)
    _requantise()
    shutil.rmtree(work)


def _sources(pip: tuple[str, ...], work: Path) -> Path:
    """The folder of llama.cpp inside the unpacked source distribution."""
    pinned = work / "source.txt"
    pinned.write_text(SOURCE + "\n", encoding="ascii")
    download = ("download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation")
    subprocess.run(
        [*pip, "install", "scikit-build-core[pyproject]>=0.9.2"], check=True
    )  # pip asks the distribution's own build backend for its metadata
    subprocess.run([*pip, *download, "-r", str(pinned), "-d", str(work)], check=True)
    (archive,) = work.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(work, filter="data")
    (found,) = work.glob("*/vendor/llama.cpp")
    return found


def _build(source: Path, out: Path, tools: Path, jobs: int) -> None:
    """Compile the two programs and copy them into place."""
    environ = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    cmake = str(tools / "cmake")
    settings = [f"-D{option}" for option in _OPTIONS]
    if platform.machine() == "x86_64":
        settings += [f"-DCMAKE_{language}_FLAGS={_WITHOUT_AMX}" for language in ("C", "CXX")]
    configure = [cmake, "-S", str(source), "-B", str(out), "-G", "Ninja", *settings]
    subprocess.run(configure, check=True, env=environ, stdout=subprocess.DEVNULL)
    names = [SERVER.name, QUANTIZE.name]
    build = [cmake, "--build", str(out), "--parallel", str(jobs), "--target", *names]
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.llamacpp", description=__doc__)
    parser.add_argument("--install", action="store_true", help="build it, anew if it is there")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    if arguments.install:
        install(arguments.jobs)
    print(f"llama.cpp is installed in {HOME}" if installed() else f"not installed; {INSTALL}")
    return int(not installed())


if __name__ == "__main__":
    sys.exit(main())
