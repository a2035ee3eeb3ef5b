"""What vLLM started ends with the replica, even if that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

from outrider.engines.turn.vllm.guard import Guard

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
PARENT = f"""
import subprocess, sys, time
from outrider.engines.turn.vllm.guard import Guard
child = subprocess.Popen({SLEEP!r})
guard = Guard([child.pid])
print(child.pid, flush=True)
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
        pid = int(parent.stdout.readline())
    assert not is_gone(pid)
    parent.kill()
    parent.wait()
    wait_until(lambda: is_gone(pid))


def test_processes_end_when_the_guard_is_closed_and_ended_ones_are_left_alone() -> None:
    child, ended = subprocess.Popen(SLEEP), subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    guard = Guard([child.pid, ended.pid])
    assert child.poll() is None
    guard.close()
    assert child.wait() == -9
    assert os.path.exists(f"/proc/{os.getpid()}")
