"""How peers are installed."""

from __future__ import annotations

import subprocess
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOME: Final = Path(__file__).parents[2] / ".bench-venvs"


@dataclass(frozen=True, slots=True)
class Peer:
    """One that does not come with Outrider itself."""

    name: str
    version: str
    minutes: float
    """What installing it took on two cores."""
    is_installed: Callable[[], bool]
    install: Callable[[], None]
    """Anew if it is there. Raises CalledProcessError where a step fails, and RuntimeError for want
    of something of the machine's."""

    @property
    def hint(self) -> str:
        """What to say where it is missing."""
        return f"not installed; `.venv/bin/python -m bench.peers {self.name}` installs it"


def pip(python: Path) -> tuple[str, ...]:
    """The command of an environment's own."""
    return (str(python), "-m", "pip", "--disable-pip-version-check", "-q")


def from_index(
    name: str,
    version: str,
    *requirements: str,
    program: str,
    dependencies: tuple[str, ...] = (),
    minutes: float = 1.0,
) -> Peer:
    """A peer whose packages are in the package index: an environment `.bench-venvs/NAME`, in which
    `program` (a pattern below it) is there once it is whole. `dependencies` in place of those that
    the packages ask for, if any are given."""
    home = HOME / name

    def install() -> None:
        venv.create(home, clear=True, with_pip=True)
        command = pip(home / "bin" / "python")
        if dependencies:
            subprocess.run([*command, "install", *dependencies], check=True)
        alone = ("--no-deps",) if dependencies else ()
        subprocess.run([*command, "install", *alone, *requirements], check=True)

    return Peer(name, version, minutes, lambda: any(home.glob(program)), install)
