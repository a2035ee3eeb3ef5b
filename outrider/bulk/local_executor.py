"""Runs shards in worker processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Generator, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import structlog

from outrider.bulk.fork_server import ForkServer
from outrider.bulk.plan.assignments import Assignments
from outrider.bulk.plan.results import FailedShard, ShardOutcome
from outrider.bulk.plan.shards import Shard
from outrider.bulk.worker import BulkJob
from outrider.errors import OutriderError
from outrider.tokenization.backends.base import Backend

log = structlog.get_logger()


class LocalExecutor:
    """Runs several processes; the shard of a worker that dies goes to another one."""

    def __init__(self, job: BulkJob, num_workers: int, fast: Backend | None = None) -> None:
        """Starts workers at once, so that they are ready when shards come. `fast`: the job's
        backend, if this process has already loaded it. `close` must be called."""
        self._server = ForkServer(job, fast)
        self._num_workers = num_workers
        self._workers: dict[int, _WorkerProcess] = {}
        self._num_started = 0

    @property
    def pids(self) -> list[int]:
        """Process ids of the running workers."""
        return [worker.pid for worker in self._workers.values()]

    def run(self, shards: list[Shard]) -> Generator[ShardOutcome, None, None]:
        """The outcome of each shard, in any order. Raises OutriderError if a worker fails for
        good."""
        assignments = Assignments(shards, self._num_workers)
        try:
            while not assignments.is_over:
                self._start_workers(assignments)
                for number in self._ready():
                    yield from self._receive(number, assignments)
        finally:
            self._end()

    def close(self) -> None:
        """End every process."""
        self._end()
        self._server.close()

    def _start_workers(self, assignments: Assignments) -> None:
        """Start as many workers as the work needs, and fill each one's queue."""
        while assignments.has_waiting and len(self._workers) < self._num_workers:
            self._workers[self._num_started] = _WorkerProcess(self._server)
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
        log.warning("worker_died", pid=worker.pid, status=status)
        failed = assignments.died(number)
        if failed is not None:
            yield FailedShard(failed, f"workers die at it (the last with status {status})")

    def _end(self) -> None:
        for worker in self._workers.values():
            worker.kill()
        for worker in self._workers.values():
            worker.end()
        self._workers.clear()


class _WorkerProcess:
    """One process."""

    def __init__(self, server: ForkServer) -> None:
        self.connection: Connection
        self.connection, theirs = multiprocessing.Pipe()
        self._server = server
        with theirs:
            self.pid = server.fork(theirs.fileno())

    def send(self, shard: Shard) -> None:
        try:
            self.connection.send(shard)
        except OSError:
            pass  # it is gone, which its pipe will say when it is read

    def kill(self) -> None:
        """SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def end(self) -> int | None:
        """End the worker; returns its exit status, or None if unknown."""
        self.connection.close()
        return self._server.ended(self.pid)
