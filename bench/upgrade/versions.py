"""Versions of this project, each a wheel that is installed in a folder of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from bench.harness.mesh import Service
from tools.earlier_version import ROOT, extract

_NUMBER: Final = re.compile(r'^__version__ = "([^"+]*)"$', re.MULTILINE)
_LIMIT_S: Final = 300.0
"""Of one command."""


@dataclass(frozen=True, slots=True)
class Version:
    """An installed wheel. Its processes have all other packages from this environment."""

    label: str
    """What its processes answer at /version."""
    folder: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of a process that runs it. PYTHONSAFEPATH: Python does not look for modules in
        the working directory, where it would find this checkout first."""
        return {"PYTHONPATH": str(self.folder), "PYTHONSAFEPATH": "1"}

    async def outrider(self, *arguments: str) -> str:
        """What a command of this version prints. Raises RuntimeError if it fails."""
        words = (sys.executable, "-m", "outrider.cli.main", *arguments)
        return await asyncio.to_thread(_run, words, self.environment)

    async def check_runs(self, service: Service) -> None:
        """Raises RuntimeError unless the service's process runs this version."""
        url = f"http://{service.host}:{service.ports.admin}/version"
        answer = await asyncio.to_thread(lambda: urlopen(url, timeout=10).read())
        if (label := json.loads(answer)["version"]) != self.label:
            raise RuntimeError(f"{service.name} runs {label}, not {self.label}")


def install_commit(commit: str, folder: Path) -> Version:
    """Build the wheel of a commit and install it into `folder`; takes seconds. Raises
    NoHistoryError, RuntimeError."""
    with tempfile.TemporaryDirectory() as source:
        extract(commit, Path(source))
        return _install(Path(source), commit[:8], folder)


def install_this(folder: Path) -> Version:
    """The same for the working tree. Raises RuntimeError."""
    return _install(ROOT, "this", folder)


def _install(source: Path, name: str, folder: Path) -> Version:
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    with tempfile.TemporaryDirectory() as made:
        build = ("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", made)
        _run((*pip, *build, str(source)))
        (wheel,) = Path(made).glob("*.whl")
        _run((*pip, "install", "--no-deps", "--no-index", "--target", str(folder), str(wheel)))
    return Version(_label(folder / "outrider" / "__init__.py", name), folder)


def _label(module: Path, name: str) -> str:
    """Give an installed version a number of its own, by which its processes are told apart: two
    commits between two releases have the same."""
    text = module.read_text(encoding="utf-8")
    (number,) = _NUMBER.findall(text)
    label = f"{number}+{name}"
    module.write_text(_NUMBER.sub(f'__version__ = "{label}"', text), encoding="utf-8")
    return label


def _run(words: tuple[str, ...], environment: Mapping[str, str] | None = None) -> str:
    environ = {**os.environ, **(environment or {})}
    done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, env=environ)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stderr.strip()}")
    return done.stdout
