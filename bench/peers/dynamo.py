"""NVIDIA Dynamo's frontend, its KV-aware router and its CPU mocker, from the package index.

    .venv/bin/python -m bench.peers.dynamo --install

makes `.bench-venvs/dynamo`. One dependency of the `ai-dynamo` package is left out: `aisimulate`,
whose entry in the index only fetches a wheel from the vendor's own server; Dynamo imports it for
its predicted GPU timings, which nothing here uses. Nothing else of this project needs any of it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

HOME = Path(__file__).parents[2] / ".bench-venvs" / "dynamo"
PYTHON = HOME / "bin" / "python"
VERSION = "1.6.1"
INSTALL = "`.venv/bin/python -m bench.peers.dynamo --install` installs it"

_DEPENDENCIES = (
    *("aiohttp>=3.14.3,<4", "certifi", "kubernetes>=32.0.1,<33", "msgspec>=0.19"),
    *("prometheus-client>=0.23.1,<1", "pydantic>=2.10.6,<=2.13.5", "pyzmq>=26", "redis>=6.2,<9"),
    *("tqdm>=4", "transformers>=4.56", "uvloop>=0.21", "zstandard>=0.23,<1"),
)
"""What the two packages ask for, but for `aisimulate`."""


def installed() -> bool:
    """Whether it is there."""
    return any(HOME.glob("lib/python*/site-packages/dynamo/mocker/main.py"))


def install() -> None:
    """Raises CalledProcessError where a step fails."""
    venv.create(HOME, clear=True, with_pip=True)
    pip = (str(PYTHON), "-m", "pip", "--disable-pip-version-check", "-q")
    own = (f"ai-dynamo=={VERSION}", f"ai-dynamo-runtime=={VERSION}")
    subprocess.run([*pip, "install", *_DEPENDENCIES], check=True)
    subprocess.run([*pip, "install", "--no-deps", *own], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.dynamo", description=__doc__)
    parser.add_argument("--install", action="store_true", help="install it, anew if it is there")
    if parser.parse_args().install:
        install()
    print(f"Dynamo is installed in {HOME}" if installed() else f"not installed; {INSTALL}")
    return int(not installed())


if __name__ == "__main__":
    sys.exit(main())
