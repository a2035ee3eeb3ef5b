"""Commands that may not read or write, on a disk that is full, with too many files open, with an
output that takes nothing: each ends with one sentence, never with a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.cli.test_main import COMMANDS
from tests.cli.without_room import Lack

LINES: Final = {
    "keys create more": "permission space files output",
    "keys list": "output",
    "keys rotate web": "permission space files output",
    "keys revoke web": "permission space files output",
    "edges key out/new.pem": "permission space output",
    "edges sign edges.json edge.example.net --key-file edges.pem": "permission space",
    "edges show edges.json": "output",
    "models list": "output",
    "models verify": "output",
    "models pull file:text": "permission space files output",
    "models add other file:text": "permission space files output",
    "models forget mine": "permission files output",
    "models manifest file:model": "output",
    "models push file:model file:out": "permission space files output",
    "models rm file:model": "permission files output",
    "models serve --port 0 --ready-file out/ready": "permission space files",
    "config show edge --config mesh.toml": "output",
    "config defaults edge": "output",
    "config validate mesh.toml": "output",
    "tokenize text.txt --vocabulary tokenizer.json --out out/shards": "permission space files",
    "chat --edge 127.0.0.1:1 --insecure --prompt hello": "permission space files output",
    "bench serve --edge 127.0.0.1:1 --insecure --requests 1": "permission space files output",
    "embed text.txt --out out/vectors --model none": "permission space files output",
    "serve edge --set models=file:model": "permission space files",
    "serve router --set port=nowhere": "permission space files output",
    "up --detach --model file:none": "permission space files output",
    "reference --model file:none --prompt hello": "permission space files output",
    "logs": "permission space files output",
    "status": "permission space files output",
    "down": "permission space files output",
    "drain here-0": "permission space files output",
    "explain": "permission space files output",
    "prefixes": "permission space files output",
    "check": "permission space files output",
    "doctor --model file:none": "output",
}
"""Commands, and the lacks with which each fails; with the others it may do as it likes."""


@dataclass
class Machine:
    """Folders with what commands read."""

    folder: Path

    def __post_init__(self) -> None:
        for name in ("state", "store", "config", "out"):
            (self.folder / name).mkdir(mode=0o700)
        (self.folder / "model").write_bytes(b"weights")
        (self.folder / "text").write_text("hello\n")
        (self.folder / "text.txt").write_text("hello\n")
        (self.folder / "tokenizer.json").write_text("{}")
        (self.folder / "mesh.toml").write_text("[edge]\nport = 1\n")
        (self.folder / "config" / "models.toml").touch()
        begun = [
            *("keys create web", "models pull file:model", "models add mine file:model"),
            *("edges key edges.pem", "edges sign edges.json here.example --key-file edges.pem"),
        ]
        for line, (status, said) in self.run(begun, "nothing").items():
            assert status == 0, f"{line}: {said}"

    def run(self, lines: Iterable[str], lack: Lack) -> dict[str, tuple[int, str]]:
        """The exit status of each command, and what it says on standard error."""
        environment = {
            "OUTRIDER_STATE_DIR": str(self.folder / "state"),
            "OUTRIDER_MODEL_STORE": str(self.folder / "store"),
            "OUTRIDER_MODELS": str(self.folder / "config" / "models.toml"),
            "PYTHONPATH": str(Path.cwd()),
        }
        ran = subprocess.run(
            [sys.executable, "-m", "tests.cli.without_room", lack],
            input=json.dumps([line.split() for line in lines]),
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**os.environ, **environment},
        )
        assert ran.returncode == 0, ran.stderr
        return dict(zip(lines, json.loads(ran.stdout), strict=True))

    def forbid_writing(self) -> None:
        for path in (self.folder, *self.folder.rglob("*")):
            if path.is_dir():
                path.chmod(0o500)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    yield Machine(tmp_path)
    for path in (tmp_path, *tmp_path.rglob("*")):
        if path.is_dir():
            path.chmod(0o700)  # so that it can be removed


def test_every_command_is_tried() -> None:
    tried = {" ".join(["outrider", *line.split()[:number]]) for line in LINES for number in (1, 2)}
    demos = {"outrider demo kill", "outrider demo wan"}  # they start what `up` starts
    assert COMMANDS.keys() - tried == demos


@pytest.mark.parametrize("lack", ["permission", "space", "files", "output"])
def test_a_command_ends_with_a_sentence(lack: Lack, machine: Machine) -> None:
    if lack == "permission":
        machine.forbid_writing()
    for line, (status, said) in machine.run(LINES, lack).items():
        told = f"{line}: {status}\n{said}"
        assert "Traceback" not in said and "Exception ignored" not in said, told
        assert status in (0, 1, 2, 5), told
        if lack in LINES[line].split():
            assert status and said.strip(), told
