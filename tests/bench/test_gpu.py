"""The script for a GPU runs from end to end where there is none, and goes on where it stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch


def run(out: Path, *arguments: str) -> dict[str, Any]:
    """The last line of a run on the CPU."""
    command = [sys.executable, "-m", "bench.gpu", "--out", str(out), "--device", "cpu", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_every_stage_ends_and_is_kept(tmp_path: Path) -> None:
    told = run(tmp_path)
    assert told["device"] == "cpu" and told["contract"] == "passed" and told["bits_equal"]
    assert {"1 x 128", "8 x 128"} <= told["step_ms"].keys()
    assert all(one["texts_equal"] for one in told["tokens_per_s"].values())
    assert told["exact_over_library"] > 0 and told["share_of_memory_speed"] > 0
    stages = {file.stem: json.loads(file.read_text()) for file in tmp_path.glob("*.json")}
    assert stages.keys() == {"machine", "build", "contract", "bits", "steps", "tokens"}
    assert not any("failed" in figures for figures in stages.values())
    # What is there is not done again.
    (tmp_path / "tokens.json").write_text('{"tokens_per_s": {"1": {"texts_equal": true}}}')
    again = run(tmp_path, "--budget-s", "0")
    assert again == told | {"tokens_per_s": {"1": {"texts_equal": True}}}
