"""Worker processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, Final

import structlog

from outrider.bulk.engines.base import GivenUp, Outcome
from outrider.bulk.plan.assignments import Assignments
from outrider.bulk.plan.shards import Shard
from outrider.bulk.work.worker import ENVIRONMENT, Job
from outrider.errors import OutriderError

_CHILD: Final = (sys.executable, "-m", "outrider.bulk.engines.child")
_END_S: Final = 5.0

log = structlog.get_logger()


class LocalEngine:
    """Several processes; a shard whose worker dies goes to another one."""

    def __init__(self, job: Job, num_workers: int) -> None:
        self._job = job
        self._num_workers = num_workers
        self._members: dict[int, _Member] = {}
        self._num_started = 0

    @property
    def pids(self) -> list[int]:
        """Of the workers that run."""
        return [member.process.pid for member in self._members.values()]

    def run(self, shards: list[Shard]) -> Generator[Outcome, None, None]:
        """What comes of each, in any order. Raises OutriderError when a worker cannot go on."""
        assignments = Assignments(shards, self._num_workers)
        try:
            while not assignments.is_over:
                self._employ(assignments)
                for number in self._ready():
                    yield from self._hear(number, assignments)
        finally:
            self._end()

    def _employ(self, assignments: Assignments) -> None:
        """As many workers as there is work for, and as much for each as it holds."""
        while assignments.has_waiting and len(self._members) < self._num_workers:
            self._members[self._num_started] = _Member(self._job)
            self._num_started += 1
            for number in self._members:
                self._feed(number, assignments)

    def _feed(self, number: int, assignments: Assignments) -> None:
        while shard := assignments.take(number):
            self._members[number].send(shard)

    def _ready(self) -> list[int]:
        connections: list[Any] = [member.connection for member in self._members.values()]
        ready = wait(connections)
        return [n for n, member in self._members.items() if member.connection in ready]

    def _hear(self, number: int, assignments: Assignments) -> Iterator[Outcome]:
        member = self._members[number]
        try:
            answer = member.connection.recv()
        except (EOFError, OSError):
            del self._members[number]
            yield from self._lost(number, member, assignments)
            return
        if isinstance(answer, OutriderError):
            raise answer
        assignments.done(number)
        self._feed(number, assignments)
        yield answer

    def _lost(self, number: int, member: _Member, assignments: Assignments) -> Iterator[Outcome]:
        status = member.end()
        log.warning("worker died", pid=member.process.pid, status=status)
        given_up = assignments.died(number)
        if given_up is not None:
            yield GivenUp(given_up, f"workers die at it (the last with status {status})")

    def _end(self) -> None:
        for member in self._members.values():
            member.process.kill()
        for member in self._members.values():
            member.end()
        self._members.clear()


class _Member:
    """One process."""

    def __init__(self, job: Job) -> None:
        self.connection: Connection
        self.connection, theirs = multiprocessing.Pipe()
        with theirs:
            # In a session of its own: a terminal's Ctrl-C is for the command, which ends it.
            self.process = subprocess.Popen(
                [*_CHILD, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **ENVIRONMENT},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.send(job)

    def send(self, what: Job | Shard) -> None:
        try:
            self.connection.send(what)
        except OSError:
            pass  # it is gone, which is heard when it is asked

    def end(self) -> int:
        """Its exit status; the process has ended, or ends now."""
        self.connection.close()
        try:
            return self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
