"""vLLM's router, a Rust program, from the package index.

    .venv/bin/python -m bench.peers.vllm_router --install

makes `.bench-venvs/vllm-router`. Nothing else of this project needs it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

HOME = Path(__file__).parents[2] / ".bench-venvs" / "vllm-router"
PYTHON = HOME / "bin" / "python"
SERVER = HOME / "bin" / "vllm-router"
VERSION = "0.1.17"
INSTALL = "`.venv/bin/python -m bench.peers.vllm_router --install` installs it"


def installed() -> bool:
    """Whether it is there."""
    return SERVER.is_file()


def install() -> None:
    """Raises CalledProcessError where a step fails."""
    venv.create(HOME, clear=True, with_pip=True)
    pip = (str(PYTHON), "-m", "pip", "--disable-pip-version-check", "-q")
    subprocess.run([*pip, "install", f"vllm-router=={VERSION}"], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.vllm_router", description=__doc__)
    parser.add_argument("--install", action="store_true", help="install it, anew if it is there")
    if parser.parse_args().install:
        install()
    print(f"vllm-router is installed in {HOME}" if installed() else f"not installed; {INSTALL}")
    return int(not installed())


if __name__ == "__main__":
    sys.exit(main())
