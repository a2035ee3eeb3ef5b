"""The parent of several processes of one service: starts them, again when they die, stops them.

It does no work of the service. It holds what outlives a process: the sockets, so that their numbers
in the kernel stay the same, and what the processes count together.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from outrider import children
from outrider.children import ChildProcess
from outrider.errors import UnavailableError
from outrider.process import PARENT_ENDED, Ports, read_ports
from outrider.telemetry import names
from outrider.telemetry.config import AdminConfig
from outrider.telemetry.logs import configure_logging
from outrider.telemetry.metrics import Metrics
from outrider.workers.admin import GroupAdmin
from outrider.workers.restarts import RestartPolicy, Restarts
from outrider.workers.worker import Worker

log = structlog.get_logger()

_POLL_S: Final = 0.02
_END_S: Final = 10.0
"""Time that a process may take to end, beyond the time in which it drains."""


class Group(Protocol):
    """Resources shared by the processes of one service; their parent opens them."""

    @property
    def count(self) -> int:
        """Number of processes."""
        ...

    @property
    def ports(self) -> Ports:
        """Ports of the whole group; the admin listener is the parent's."""
        ...

    @property
    def kept(self) -> Sequence[int]:
        """Descriptors that every process holds open for the whole group: if the parent is killed,
        the resources behind them stay until the last process has ended."""
        ...

    def worker(self, index: int) -> Worker:
        """The configuration passed to a process."""
        ...

    def set_live(self, live: frozenset[int]) -> None:
        """From now on these take connections."""
        ...

    def ended(self, index: int) -> None:
        """Free what a process held that has ended."""
        ...

    def stop_listening(self) -> None:
        """Take no new connections, if the kernel can distinguish them."""
        ...

    def close(self) -> None:
        """All processes have ended."""
        ...


class Parent:
    """Runs the processes of a group. `serve` runs until it is stopped."""

    def __init__(
        self,
        service: str,
        group: Group,
        command: Sequence[str],
        *,
        admin: AdminConfig,
        drain_s: float,
        log_level: str,
        policy: RestartPolicy | None = None,
    ) -> None:
        """`command` starts a process, with `--ready-file FILE` behind it."""
        self._service = service
        self._group = group
        self._command = command
        self._admin = admin
        self._drain_s = drain_s
        self._log_level = log_level
        self._policy = policy or RestartPolicy()
        self._processes: dict[int, ChildProcess] = {}
        """Processes that were started and have not ended."""
        self._admin_ports: dict[int, int | None] = dict.fromkeys(range(group.count))
        self._restarts: dict[int, Restarts] = {}
        self._is_stopping = False

    @property
    def _live(self) -> frozenset[int]:
        """Indices of the processes that are ready."""
        return frozenset(index for index, port in self._admin_ports.items() if port is not None)

    def hangup(self) -> None:
        """SIGHUP: all look at their file."""
        for index in self._live:
            self._send(index, signal.SIGHUP)

    def _state(self) -> tuple[bool, str]:
        if self._is_stopping:
            return False, "the service is stopping"
        return True, "serving"

    async def serve(
        self,
        *,
        ready: Callable[[Ports], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Start all; `ready` is called when all are. Then until `stop` is set. Raises
        UnavailableError if one ends before it is ready for the first time, and ConfigError."""
        configure_logging(self._service, self._log_level)
        metrics = Metrics(self._service)
        self._up = metrics.table(names.WORKER_UP)
        self._restarted = metrics.counter(names.WORKER_RESTARTS)
        admin = GroupAdmin(
            self._admin,
            ports=lambda: self._admin_ports,
            state=self._state,
            registry=metrics.registry,
        )
        stopping = stop or asyncio.Event()
        with tempfile.TemporaryDirectory(prefix="outrider-workers-") as folder:
            try:
                admin_port = await admin.start()
                await self._run(Path(folder), admin_port, ready, stopping)
            finally:
                await self._stop()
                await admin.stop()
                self._group.close()
                metrics.close()

    async def _run(
        self,
        folder: Path,
        admin_port: int,
        ready: Callable[[Ports], None] | None,
        stopping: asyncio.Event,
    ) -> None:
        indexes = range(self._group.count)
        stop = asyncio.create_task(stopping.wait())
        starting = [asyncio.create_task(self._start(index, folder)) for index in indexes]
        keepers: list[asyncio.Task[None]] = []
        try:
            await _all_or(stop, starting)
            if stop.done():
                return
            if ready is not None:
                ports = self._group.ports
                ready(Ports(ports.main, admin_port, ports.http, ports.num_main))
            log.info("workers_ready", count=self._group.count, port=self._group.ports.main)
            keepers = [asyncio.create_task(self._keep(index, folder)) for index in indexes]
            await _all_or(stop, keepers)
        finally:
            self._is_stopping = True
            for task in (stop, *starting, *keepers):
                task.cancel()
            await asyncio.gather(stop, *starting, *keepers, return_exceptions=True)

    async def _start(self, index: int, folder: Path) -> None:
        """Raises UnavailableError if it ends before it is ready, OSError if it cannot be run."""
        self._restarts.setdefault(index, Restarts(self._policy, time.monotonic()))
        ready_file = folder / f"{index}.json"
        ready_file.unlink(missing_ok=True)
        worker = self._group.worker(index)
        told = (worker.datagrams, worker.connections, worker.usage)
        process = children.start(
            (*self._command, "--ready-file", str(ready_file)),
            stdin=subprocess.DEVNULL,
            env={**os.environ, **worker.to_environment()},
            pass_fds=sorted({fd for fd in (*told, *self._group.kept) if fd >= 0}),
            start_new_session=True,  # Ctrl-C reaches the parent alone, which stops all
            ends_with_parent=PARENT_ENDED,
        )
        self._processes[index] = process
        try:
            while (ports := read_ports(ready_file)) is None:
                if process.returncode is not None:
                    raise UnavailableError(
                        f"process {index} of {self._group.count} ended with status "
                        f"{process.returncode} before it was ready; its log says why"
                    )
                await asyncio.sleep(_POLL_S)
        except (UnavailableError, OSError):
            self._send(index, signal.SIGKILL)
            await process.wait()
            del self._processes[index]
            raise
        self._changed(index, ports.admin)

    async def _keep(self, index: int, folder: Path) -> None:
        """Start it again whenever it ends."""
        restarts = self._restarts[index]
        while True:
            status = await self._processes[index].wait()
            del self._processes[index]
            self._lost(index)
            was_ready = True
            while index not in self._processes:
                pause_s = restarts.died(time.monotonic(), was_ready=was_ready)
                log.error("worker_ended", worker=index, status=status, again_in_s=pause_s)
                await asyncio.sleep(pause_s)
                restarts.started(time.monotonic())
                self._restarted.add(1, {"worker": str(index)})
                try:
                    await self._start(index, folder)
                except UnavailableError:
                    was_ready = False
                except OSError as error:
                    # No room on the disk, no more processes: the others need neither.
                    was_ready = False
                    log.error("worker_not_started", worker=index, error=str(error))
            log.info("worker_back", worker=index)

    def _lost(self, index: int) -> None:
        self._group.ended(index)
        self._changed(index, None)

    def _changed(self, index: int, admin_port: int | None) -> None:
        self._admin_ports[index] = admin_port
        live = self._live
        self._group.set_live(live)
        rows = [(float(each in live), {"worker": str(each)}) for each in self._admin_ports]
        self._up.set(rows)

    async def _stop(self) -> None:
        self._is_stopping = True
        self._group.stop_listening()
        await asyncio.gather(*(self._end(index) for index in list(self._processes)))

    async def _end(self, index: int) -> None:
        process = self._processes[index]
        self._send(index, signal.SIGTERM)
        try:
            async with asyncio.timeout(self._drain_s + _END_S):
                await process.wait()
        except TimeoutError:
            log.error("worker_killed", worker=index, why="it did not end in time")
            self._send(index, signal.SIGKILL)
            await process.wait()
        del self._processes[index]
        self._lost(index)

    def _send(self, index: int, number: signal.Signals) -> None:
        process = self._processes.get(index)
        if process is not None:
            process.send_signal(number)


async def _all_or(stop: asyncio.Task[bool], tasks: Sequence[asyncio.Task[None]]) -> None:
    """Until `stop` is done, or all tasks are. Raises what one of them raises."""
    together = asyncio.gather(*tasks)
    either: set[asyncio.Future[Any]] = {stop, together}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if together.done():
            together.result()
    finally:
        together.cancel()
        await asyncio.gather(together, return_exceptions=True)


def command_of(role: str, config: Path | None, settings: Sequence[str]) -> list[str]:
    """Command line that starts one process of a service."""
    file = () if config is None else ("--config", str(config))
    given = [f"--set={setting}" for setting in settings]
    return list(children.python_module("outrider.cli.main", "serve", role, *file, *given))
