"""Exit statuses as `outrider --help` says: 0 well, 1 failed or refused, 2 no such command, flag or
value, 130 interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "outrider.cli.main")


@pytest.mark.parametrize(
    ("line", "status", "told"),
    [
        ("--version", 0, "outrider "),
        ("config defaults router", 0, "port = 7100"),
        ("--help", 0, "130 interrupted"),
        ("down", 1, "no mesh is up"),
        ("status", 1, "no mesh"),
        ("logs", 1, "has no logs"),
        ("config validate none.toml", 1, "cannot read"),
        ("chat --edge 127.0.0.1:1 --insecure --prompt hello", 1, "nothing answers at"),
        ("serve router --set prot=1", 1, "did you mean port"),
        ("chatt", 2, "No such command"),
        ("chat --promt hello", 2, "No such option"),
        ("up --replicas 0", 2, "--replicas"),
        ("up --rtt 9000", 2, "--rtt"),
        ("serve clown", 2, "clown"),
    ],
)
def test_what_a_command_ends_with(line: str, status: int, told: str, tmp_path: Path) -> None:
    environment = {**os.environ, "OUTRIDER_STATE_DIR": str(tmp_path / "state"), "COLUMNS": "200"}
    done = subprocess.run(
        [*COMMAND, *line.split()], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == status, done.stderr
    assert told in (done.stdout if status == 0 else done.stderr)
    assert "Traceback" not in done.stderr


def test_an_interrupted_command_ends_with_130(tmp_path: Path) -> None:
    file = tmp_path / "waits.toml"
    os.mkfifo(file)
    with subprocess.Popen(
        # Whoever runs the tests in the background ignores SIGINT, and children inherit that.
        ["env", "--default-signal=INT", *COMMAND, "config", "validate", str(file)],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        with file.open("w"):  # returns once the command reads
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("embed", "there is no text"),
        ("chat --edge 127.0.0.1:1 --insecure", "no prompt was given"),
    ],
)
def test_a_standard_input_that_is_closed_is_empty(line: str, told: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, *line.split()],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OUTRIDER_STATE_DIR": str(tmp_path / "state")},
    )
    assert done.returncode == 1, done.stderr
    assert told in done.stderr and "Traceback" not in done.stderr
