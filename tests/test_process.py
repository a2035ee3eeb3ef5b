"""Signals of a service's process, a real one: which of them let it drain, and which end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from signal import SIGINT, SIGTERM

import pytest

from outrider.process import PARENT_ENDED

CHILD = """
import asyncio, signal, sys
from outrider.process import run

async def serve(config, *, ready, stop):
    print("up", flush=True)
    await stop.wait()
    print("drains", flush=True)
    drained = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, drained.set)
    print("waits", flush=True)
    await drained.wait()

run(serve, None, has_parent=sys.argv[1] == "True")
print("ended", flush=True)
"""
PARENT = """
import sys, threading
from outrider.children import start
from outrider.process import PARENT_ENDED

for _ in range(5):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
child = start((sys.executable, "-c", sys.argv[1], "True"), ends_with_parent=PARENT_ENDED)
print(child.pid, flush=True)
child.join()
"""


def test_a_service_may_open_as_many_files_as_its_user() -> None:
    child = """
import resource
from outrider.process import run

async def serve(config, *, ready, stop):
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))
run(serve, None)
"""
    ended = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
    assert ended.stdout.split() == ["512", "512"]


@pytest.mark.parametrize(
    ("has_parent", "first", "second", "status"),
    [
        (False, SIGTERM, SIGTERM, 128 + SIGTERM),
        (False, SIGINT, SIGTERM, 128 + SIGTERM),
        (True, SIGTERM, SIGTERM, 0),
        (True, PARENT_ENDED, PARENT_ENDED, 0),
        (True, PARENT_ENDED, SIGTERM, 0),
        (True, SIGTERM, PARENT_ENDED, 128 + PARENT_ENDED),
    ],
)
def test_a_second_signal(
    has_parent: bool, first: signal.Signals, second: signal.Signals, status: int
) -> None:
    command = [sys.executable, "-c", CHILD, str(has_parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        child.send_signal(first)
        assert [child.stdout.readline() for _ in range(2)] == ["drains\n", "waits\n"]
        child.send_signal(second)
        if not status:
            child.send_signal(signal.SIGUSR1)
        assert child.wait(60) == status


def test_a_killed_parent_of_several_threads_lets_it_drain() -> None:
    """The kernel tells of it as often as a thread of the parent ends."""
    command = [sys.executable, "-c", PARENT, CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        (pid,) = {parent.stdout.readline() for _ in range(2)} - {"up\n"}
        parent.kill()
        assert [parent.stdout.readline() for _ in range(2)] == ["drains\n", "waits\n"]
        os.kill(int(pid), signal.SIGUSR1)
        assert parent.stdout.readline() == "ended\n"
