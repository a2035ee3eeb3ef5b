"""The parent of several processes, with real ones that do little: started, again, stopped."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from outrider import children
from outrider.children import ChildProcess
from outrider.errors import UnavailableError
from outrider.process import Ports
from outrider.telemetry.config import AdminConfig
from outrider.testing import eventually
from outrider.workers.parent import Parent
from outrider.workers.restarts import RestartPolicy
from outrider.workers.worker import Worker

CHILD = """
import asyncio, json, os, signal, sys
from pathlib import Path
from prometheus_client import CollectorRegistry, Gauge
from outrider.process import Ports, write_ports
from outrider.telemetry.admin import AdminServer
from outrider.telemetry.config import AdminConfig
from outrider.workers.worker import this_worker

async def main():
    worker = this_worker()
    assert "OUTRIDER_WORKER" not in os.environ, "its own children are not told"
    if worker.index == int(sys.argv[1]):
        sys.exit(3)
    registry = CollectorRegistry()
    Gauge("index", "Mine.", registry=registry).set(worker.index)
    state = [True, "serving"]
    admin = AdminServer(AdminConfig(), ready=lambda: tuple(state), registry=registry)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGHUP, state.__setitem__, slice(None), [False, "hung up"])
    write_ports(Path(sys.argv[sys.argv.index("--ready-file") + 1]), Ports(1, await admin.start()))
    await stop.wait()
    await admin.stop()

asyncio.run(main())
"""


class FakeGroup:
    """Two processes without a socket; keeps what it is told."""

    count = 2
    ports = Ports(main=4433, admin=0, http=8080)
    kept: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.live: list[frozenset[int]] = []
        self.gone: list[int] = []
        self.told: list[str] = []

    def worker(self, index: int) -> Worker:
        return Worker(index, self.count)

    def set_live(self, live: frozenset[int]) -> None:
        self.live.append(live)

    def ended(self, index: int) -> None:
        self.gone.append(index)

    def stop_listening(self) -> None:
        self.told.append("stop")

    def close(self) -> None:
        self.told.append("close")


def parent_of(group: FakeGroup, failing: int = -1) -> Parent:
    return Parent(
        "edge",
        group,
        [sys.executable, "-c", CHILD, str(failing)],
        admin=AdminConfig(),
        drain_s=30.0,
        log_level="critical",
        policy=RestartPolicy(first_pause_s=0.01),
    )


@asynccontextmanager
async def running(parent: Parent) -> AsyncIterator[Ports]:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(parent.serve(ready=ready.set_result, stop=stop))
    await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield ready.result()
    finally:
        stop.set()
        await serving


async def asked(port: int, path: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(ask)


async def test_one_admin_port_answers_for_all_and_one_that_dies_is_started_again() -> None:
    group = FakeGroup()
    parent = parent_of(group)
    async with running(parent) as ports:
        assert (ports.main, ports.http) == (4433, 8080)
        assert group.live[-1] == {0, 1}
        status, text = await asked(ports.admin, "/ready")
        assert (status, json.loads(text)["ready"]) == (200, True)
        _, page = await asked(ports.admin, "/metrics")
        assert 'index{worker="0"} 0.0' in page and 'index{worker="1"} 1.0' in page
        assert page.count("# TYPE index gauge") == 1
        assert (await asked(ports.admin, "/config"))[0] == 404
        killed = parent._processes[1]
        os.kill(killed.pid, signal.SIGKILL)
        await eventually(lambda: group.live[-1] == {0})
        assert group.gone == [1]
        await eventually(lambda: group.live[-1] == {0, 1})
        assert parent._processes[1].pid != killed.pid
        _, page = await asked(ports.admin, "/metrics")
        assert 'outrider_worker_restarts_total{worker="1"} 1.0' in page
        assert 'outrider_worker_up{worker="1"} 1.0' in page
        parent.hangup()
        seen: list[tuple[int, str]] = []
        while not seen or seen[-1][0] == 200:
            seen.append(await asked(ports.admin, "/ready"))
        assert seen[-1][0] == 503 and "hung up" in seen[-1][1]
    assert group.told == ["stop", "close"]
    assert not parent._processes


async def test_a_process_that_cannot_start_ends_all_of_them() -> None:
    group = FakeGroup()
    parent = parent_of(group, failing=1)
    with pytest.raises(UnavailableError, match="process 1 of 2 ended with status 3"):
        async with running(parent):
            raise AssertionError("it is ready")
    assert not parent._processes and group.told[-1] == "close"


async def test_a_process_that_cannot_be_forked_for_now_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = FakeGroup()
    parent = parent_of(group)
    start = children.start
    failures = [OSError(errno.EAGAIN, "no more processes"), OSError(errno.ENOSPC, "no space")]

    def start_later(command: Sequence[str], **options: Any) -> ChildProcess:
        if failures:
            raise failures.pop()
        return start(command, **options)

    async with running(parent):
        other = parent._processes[0]
        monkeypatch.setattr(children, "start", start_later)
        os.kill(parent._processes[1].pid, signal.SIGKILL)
        await eventually(lambda: group.live[-1] == {0})
        await eventually(lambda: group.live[-1] == {0, 1})
        assert not failures
        assert parent._processes[0] is other and other.returncode is None


async def test_every_process_holds_what_is_to_outlive_the_parent() -> None:
    group = FakeGroup()
    parent = parent_of(group)
    with socket.socket(type=socket.SOCK_DGRAM) as opened:
        group.kept = (opened.fileno(),)
        async with running(parent):
            for process in parent._processes.values():
                held = os.readlink(f"/proc/{process.pid}/fd/{opened.fileno()}")
                assert held == os.readlink(f"/proc/self/fd/{opened.fileno()}")
