"""What vLLM started ends with the replica, even if that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from outrider.engines.turn.vllm.guard import Guard

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
WORKERS = f"""
import subprocess, time
worker = subprocess.Popen({SLEEP!r})
print(worker.pid, flush=True)
time.sleep(600)
"""
PARENT = f"""
import subprocess, sys, time
from outrider.engines.turn.vllm.guard import Guard
child = subprocess.Popen([sys.executable, "-c", {WORKERS!r}], stdout=subprocess.PIPE)
worker = int(child.stdout.readline())
guard = Guard([child.pid])
print(child.pid, worker, flush=True)
time.sleep(600)
"""
LIMIT_S = 60.0


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Whether it has ended; nobody may have asked for its status."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"Z"
    except FileNotFoundError:
        return True


def test_processes_end_when_their_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(it) for it in parent.stdout.readline().split()]
    assert not any(map(is_gone, pids))
    parent.kill()
    parent.wait()
    for pid in pids:
        wait_until(lambda pid=pid: is_gone(pid))  # type: ignore[misc]


def test_processes_end_when_the_guard_is_closed_and_ended_ones_are_left_alone() -> None:
    child, ended = subprocess.Popen(SLEEP), subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    guard = Guard([child.pid, ended.pid])
    assert child.poll() is None
    guard.close()
    assert child.wait() == -signal.SIGTERM
    assert os.path.exists(f"/proc/{os.getpid()}")
