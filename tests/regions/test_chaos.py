"""Mixed load while one fault of each kind happens, in quick succession (bench.chaos)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from bench.chaos.__main__ import kinds_here

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(900)]
PERIOD_S = 4.0


def test_one_fault_of_each_kind_breaks_nothing() -> None:
    kinds = kinds_here()
    hours = (
        (len(kinds) - 0.5) * PERIOD_S / 3600
    )  # the last one happens half a period before the end
    # On hosts of its own: it enters another network.
    environ = {name: it for name, it in os.environ.items() if name != "OUTRIDER_OWN_NETWORK"}
    command = (sys.executable, "-m", "bench.chaos", "--quick", f"--hours={hours}")
    done = subprocess.run(
        (*command, f"--period={PERIOD_S}", "--seed=1"),
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["faults"] == dict.fromkeys(kinds, 1)
    assert told["violations"] == 0
