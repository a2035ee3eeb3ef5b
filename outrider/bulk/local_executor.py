"""Runs shards in worker processes of this machine.

`python -m outrider.bulk.local_executor FD` is such a process: it gets a job and then shards over
the pipe FD.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, Final

import structlog

from outrider.bulk.plan.assignments import Assignments
from outrider.bulk.plan.results import FailedShard, ShardOutcome, ShardResult
from outrider.bulk.plan.shards import Shard
from outrider.bulk.worker import ENVIRONMENT, BulkJob, BulkWorker
from outrider.errors import OutriderError
from outrider.telemetry.logs import configure_logging

_WORKER: Final = (sys.executable, "-m", "outrider.bulk.local_executor")
_EXIT_S: Final = 5.0
"""From closing its pipe to SIGKILL."""

log = structlog.get_logger()


class LocalExecutor:
    """Several processes; a shard whose worker dies goes to another one."""

    def __init__(self, job: BulkJob, num_workers: int) -> None:
        self._job = job
        self._num_workers = num_workers
        self._workers: dict[int, _WorkerProcess] = {}
        self._num_started = 0

    @property
    def pids(self) -> list[int]:
        """Of the workers that run."""
        return [worker.process.pid for worker in self._workers.values()]

    def run(self, shards: list[Shard]) -> Generator[ShardOutcome, None, None]:
        """The outcome of each, in any order. Raises OutriderError when a worker cannot go on."""
        assignments = Assignments(shards, self._num_workers)
        try:
            while not assignments.is_over:
                self._start_workers(assignments)
                for number in self._ready():
                    yield from self._receive(number, assignments)
        finally:
            self._end()

    def _start_workers(self, assignments: Assignments) -> None:
        """Start as many workers as there is work for, and fill each one's queue."""
        while assignments.has_waiting and len(self._workers) < self._num_workers:
            self._workers[self._num_started] = _WorkerProcess(self._job)
            self._num_started += 1
            for number in self._workers:
                self._feed(number, assignments)

    def _feed(self, number: int, assignments: Assignments) -> None:
        while shard := assignments.take(number):
            self._workers[number].send(shard)

    def _ready(self) -> list[int]:
        connections: list[Any] = [worker.connection for worker in self._workers.values()]
        ready = wait(connections)
        return [n for n, worker in self._workers.items() if worker.connection in ready]

    def _receive(self, number: int, assignments: Assignments) -> Iterator[ShardOutcome]:
        worker = self._workers[number]
        try:
            answer = worker.connection.recv()
        except (EOFError, OSError):
            del self._workers[number]
            yield from self._remove_dead(number, worker, assignments)
            return
        if isinstance(answer, OutriderError):
            raise answer
        assignments.done(number)
        self._feed(number, assignments)
        yield answer

    def _remove_dead(
        self, number: int, worker: _WorkerProcess, assignments: Assignments
    ) -> Iterator[ShardOutcome]:
        status = worker.end()
        log.warning("worker_died", pid=worker.process.pid, status=status)
        failed = assignments.died(number)
        if failed is not None:
            yield FailedShard(failed, f"workers die at it (the last with status {status})")

    def _end(self) -> None:
        for worker in self._workers.values():
            worker.process.kill()
        for worker in self._workers.values():
            worker.end()
        self._workers.clear()


class _WorkerProcess:
    """One process."""

    def __init__(self, job: BulkJob) -> None:
        self.connection: Connection
        self.connection, theirs = multiprocessing.Pipe()
        with theirs:
            # In a session of its own: a terminal's Ctrl-C is for the command, which ends it.
            self.process = subprocess.Popen(
                [*_WORKER, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **ENVIRONMENT},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.send(job)

    def send(self, what: BulkJob | Shard) -> None:
        try:
            self.connection.send(what)
        except OSError:
            pass  # it is gone, which its pipe will say when it is read

    def end(self) -> int:
        """Its exit status; the process has ended, or ends now."""
        self.connection.close()
        try:
            return self.process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def main() -> None:
    """Work until the other side closes, or ends this process."""
    configure_logging("tokenize", "warning")
    with contextlib.suppress(EOFError, BrokenPipeError), Connection(int(sys.argv[1])) as connection:
        worker = BulkWorker(connection.recv())
        while True:
            connection.send(_result(worker, connection.recv()))


def _result(worker: BulkWorker, shard: Shard) -> ShardResult | OutriderError:
    try:
        return worker.run(shard)
    except OSError as error:
        return OutriderError(f"shard {shard.number} cannot be written: {error}")


if __name__ == "__main__":
    main()
