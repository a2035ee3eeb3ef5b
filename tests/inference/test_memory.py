"""What a replica is said to take, against what the process of one holds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from outrider.cli.local.room import replica_footprint
from outrider.engines.footprint import MIB, footprint
from outrider.engines.model_size import size_of
from outrider.models.catalog import DEFAULT_MODEL
from outrider.models.sources.members import WEIGHTS
from outrider.models.store import ModelStore

pytestmark = [pytest.mark.e2e, pytest.mark.model]

KV_BYTES = 64 * MIB
NUM_FIXED = {0: 0, 4: 3}
"""Models for few rows by max_fixed_rows: for 1, 2 and 4 rows."""


def held_bytes(pid: int) -> int:
    """Bytes that a process has in memory (proc(5), smaps), without pages of its model's file: the
    kernel drops those when it needs the room. A call of a new size reads the file again."""
    num_bytes, is_model = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            is_model = line.endswith(WEIGHTS)
        elif name == "Rss:" and not is_model:
            num_bytes += int(rest[0]) * 1024
    return num_bytes


def held_when_ready(settings: Mapping[str, object]) -> int:
    """By a replica's process, once all its models are compiled."""
    given = {"port": 0, "prepare_first": "true", "kv_bytes": KV_BYTES, "warm_up_rows": 16}
    given |= settings
    environ = {f"OUTRIDER_INFERENCE_{name.upper()}": str(value) for name, value in given.items()}
    with subprocess.Popen(
        [sys.executable, "-m", "outrider.cli.main", "serve", "inference"],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        try:
            said = []
            for line in process.stdout:
                said.append(line)
                if b"replica_ready" in line:
                    return held_bytes(process.pid)
            raise AssertionError(b"".join(said).decode())
        finally:
            process.kill()


@pytest.mark.parametrize("max_fixed_rows", [0, pytest.param(4, marks=pytest.mark.soak)])
def test_a_replica_holds_what_was_said_within_a_quarter(
    model_store: ModelStore, max_fixed_rows: int
) -> None:
    size = size_of(DEFAULT_MODEL, model_store)
    said = footprint(
        size.weights_bytes, size.vocabulary_size, KV_BYTES, num_fixed=NUM_FIXED[max_fixed_rows]
    )
    held = held_when_ready({"max_fixed_rows": max_fixed_rows})
    # Nothing has filled the KV pool yet.
    assert held == pytest.approx(said.total_bytes - said.kv_bytes, rel=0.25)
    least = replica_footprint(size, {"max_fixed_rows": 0, "kv_bytes": KV_BYTES})
    assert least.needed_bytes == said.needed_bytes
