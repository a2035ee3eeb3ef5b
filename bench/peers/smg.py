"""SMG, the Shepherd Model Gateway (formerly SGLang's router), from the package index.

    .venv/bin/python -m bench.peers.smg --install

makes `.bench-venvs/smg`. Nothing else of this project needs it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

HOME = Path(__file__).parents[2] / ".bench-venvs" / "smg"
PYTHON = HOME / "bin" / "python"
SERVER = HOME / "bin" / "smg"
VERSION = "1.13.0"
INSTALL = "`.venv/bin/python -m bench.peers.smg --install` installs it"


def installed() -> bool:
    """Whether it is there."""
    return SERVER.is_file()


def install() -> None:
    """Raises CalledProcessError where a step fails."""
    venv.create(HOME, clear=True, with_pip=True)
    pip = (str(PYTHON), "-m", "pip", "--disable-pip-version-check", "-q")
    subprocess.run([*pip, "install", f"smg=={VERSION}"], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.smg", description=__doc__)
    parser.add_argument("--install", action="store_true", help="install it, anew if it is there")
    if parser.parse_args().install:
        install()
    print(f"smg is installed in {HOME}" if installed() else f"not installed; {INSTALL}")
    return int(not installed())


if __name__ == "__main__":
    sys.exit(main())
