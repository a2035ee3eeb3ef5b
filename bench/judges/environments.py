"""Environments of the judges' own. What they need stays out of the project's: it is heavy, or takes
the place of a package that is used here."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

HOME: Final = Path(__file__).parents[2] / ".bench-venvs"
_MADE: Final = "made.json"


def environment(name: str, *packages: str) -> Path:
    """The folder of programs of an environment with these packages, made unless it is there. Raises
    CalledProcessError where a package cannot be had."""
    home = HOME / f"judge-{name}"
    made = home / _MADE
    if _reads(made) != list(packages):
        print(f"making {home}", file=sys.stderr)
        venv.create(home, clear=True, with_pip=True)
        pip = (str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q")
        subprocess.run([*pip, "install", *packages], check=True)
        made.write_text(json.dumps(packages), encoding="utf-8")
    return home / "bin"


def version_of(programs: Path, package: str) -> str:
    """That of an installed package."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    command = [str(programs / "python"), "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _reads(made: Path) -> object:
    try:
        return json.loads(made.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
