"""The worker processes of this node: started when first needed, restarted when they end."""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import Final

import structlog

from outrider import children
from outrider.backoff import Backoff
from outrider.children import ChildProcess
from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics

RESTARTS: Final = Family(
    "outrider_tokenizer_worker_restarts",
    "How often a worker process ended and was started again.",
)

_WORKER: Final = children.python_module("services.tokenizer.long_texts.local_worker")
_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0
_TERMINATE_S: Final = 2.0
"""From SIGTERM to SIGKILL."""

_log = structlog.get_logger()


class WorkerProcesses:
    """Keeps `count` worker processes running, from `start` to `close`."""

    def __init__(self, count: int, metrics: Metrics) -> None:
        self.count = count
        self._metrics = metrics
        self._supervisors: list[asyncio.Task[None]] = []
        self._running: dict[str, ChildProcess] = {}
        self.address = ""
        """Address of the service they work for; set before `start`."""

    @property
    def pids(self) -> list[int]:
        """Process ids of those that run."""
        return [process.pid for process in self._running.values()]

    def start(self) -> None:
        """Start them, unless they are started."""
        if not self._supervisors:
            self._supervisors = [asyncio.create_task(self._supervise(n)) for n in range(self.count)]

    def kill(self, name: str) -> None:
        """Kill a worker that does not answer; another one is started."""
        process = self._running.get(name)
        if process is not None:
            process.kill()

    async def close(self) -> None:
        """End them all: SIGTERM, then SIGKILL."""
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)
        self._supervisors.clear()

    async def _supervise(self, number: int) -> None:
        backoff = Backoff(_FIRST_BACKOFF_S, _MAX_BACKOFF_S)
        while True:
            try:
                status = await self._run(f"local-{os.getpid()}-{number}")
                _log.warning("worker_ended", number=number, status=status)
            except OSError as error:  # out of memory, processes or descriptors
                status = 1
                _log.error("worker_not_started", number=number, error=str(error))
            self._metrics.counter(RESTARTS).add(1)
            # A process that was killed (status < 0) may run next time; one that fails by itself
            # will not.
            if status < 0:
                backoff.reset()
            await asyncio.sleep(backoff.next_s())

    async def _run(self, name: str) -> int:
        process = _start(self.address, name)
        self._running[name] = process
        try:
            return await process.wait()
        finally:
            del self._running[name]
            if process.returncode is None:
                await _terminate(process)


def _start(address: str, name: str) -> ChildProcess:
    """A worker in a session of its own: a terminal's Ctrl-C goes to the service, which ends it."""
    return children.start(
        (*_WORKER, address, name),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


async def _terminate(process: ChildProcess) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(_TERMINATE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
