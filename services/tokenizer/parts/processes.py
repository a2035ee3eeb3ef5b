"""Worker processes of this node: started when first needed, and again when they end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Final

import structlog

from outrider.telemetry.metrics import Metrics

RESTARTS: Final = "outrider.tokenizer.worker.restarts"

_WORKER: Final = (sys.executable, "-m", "services.tokenizer.parts")
_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0
_LEAVE_S: Final = 2.0

_log = structlog.get_logger()


class Processes:
    """Keeps `count` worker processes running, from `start` to `close`."""

    def __init__(self, count: int, metrics: Metrics) -> None:
        self.count = count
        self._metrics = metrics
        self._keepers: list[asyncio.Task[None]] = []
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.address = ""
        """Of the service they work for; set before `start`."""

    @property
    def pids(self) -> list[int]:
        """Of those that run."""
        return [process.pid for process in self._running.values()]

    def start(self) -> None:
        """Start them, unless that was done."""
        if not self._keepers:
            self._keepers = [asyncio.create_task(self._keep(n)) for n in range(self.count)]

    def kill(self, name: str) -> None:
        """End a worker that does not answer; another one is started."""
        process = self._running.get(name)
        if process is not None:
            process.kill()

    async def close(self) -> None:
        """End them all, by force after some seconds."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers.clear()

    async def _keep(self, number: int) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                status = await self._run(f"local-{os.getpid()}-{number}")
                _log.warning("worker_ended", number=number, status=status)
            except OSError as error:  # of memory, processes or descriptors there are none left
                status = 1
                _log.error("worker_not_started", number=number, error=str(error))
            self._metrics.counter(RESTARTS).add(1)
            # A process that was killed may do better next time; one that fails by itself will not.
            backoff_s = _FIRST_BACKOFF_S if status < 0 else min(2 * backoff_s, _MAX_BACKOFF_S)
            await asyncio.sleep(backoff_s)

    async def _run(self, name: str) -> int:
        process = _start(self.address, name)
        self._running[name] = process
        try:
            return await _ended(process)
        finally:
            del self._running[name]
            if process.returncode is None:
                await _end(process)


def _start(address: str, name: str) -> subprocess.Popen[bytes]:
    """In a session of its own: a terminal's Ctrl-C is for the service, which ends its workers.

    Not by the event loop's own means: uvloop forks, and a fork of a process whose threads are in
    gRPC crashes before it gets to exec. subprocess uses vfork, which runs no fork handlers.
    """
    return subprocess.Popen(
        (*_WORKER, address, "--name", name, "--once"),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


async def _ended(process: subprocess.Popen[bytes]) -> int:
    """Its exit status, once it has one (pidfd_open(2): readable when the process is over)."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.pidfd_open(process.pid)
    loop.add_reader(descriptor, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return process.wait()


async def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(_LEAVE_S):
            await _ended(process)
    except TimeoutError:
        process.kill()
        await _ended(process)
