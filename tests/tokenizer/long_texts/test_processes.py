"""Worker processes are kept running, whatever becomes of them, and none outlives its service."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from services.tokenizer.long_texts import processes
from services.tokenizer.long_texts.processes import RESTARTS, WorkerProcesses

STAYS = "import time; time.sleep(600)"
STAYS_DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {STAYS}"


@pytest.fixture
async def kept(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[WorkerProcesses]:
    monkeypatch.setattr(processes, "_WORKER", request.param)
    metrics = Metrics("tokenizer")
    running = WorkerProcesses(1, metrics)
    running.start()
    try:
        yield running
    finally:
        await running.close()
        metrics.close()


def restarts(kept: WorkerProcesses) -> float:
    value = kept._metrics.registry.get_sample_value(f"{RESTARTS.replace('.', '_')}_total")
    return value or 0.0


def refuses_sigterm(pid: int) -> bool:
    """As the kernel has it (proc(5): SigIgn)."""
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(ignored.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("kept", [(sys.executable, "-c", STAYS)], indirect=True)
async def test_one_that_is_killed_is_started_again(kept: WorkerProcesses) -> None:
    await eventually(lambda: len(kept.pids) == 1)
    (first,) = kept.pids
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: len(kept.pids) == 1 and kept.pids != [first])
    assert restarts(kept) == 1
    assert os.getsid(kept.pids[0]) == kept.pids[0], "Ctrl-C in the service's terminal reaches it"


@pytest.mark.parametrize("kept", [("/no/such/python",)], indirect=True)
async def test_one_that_cannot_be_started_is_tried_again(kept: WorkerProcesses) -> None:
    await eventually(lambda: restarts(kept) >= 2)
    assert not kept.pids


@pytest.mark.parametrize("kept", [(sys.executable, "-c", STAYS_DEAF)], indirect=True)
async def test_one_that_does_not_listen_ends_with_the_service(kept: WorkerProcesses) -> None:
    await eventually(lambda: len(kept.pids) == 1 and refuses_sigterm(kept.pids[0]))
    (pid,) = kept.pids
    await kept.close()
    assert not kept.pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
