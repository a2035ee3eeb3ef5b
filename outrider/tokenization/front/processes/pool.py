"""Processes that take chats when the threads are saturated, each with a thread that talks to it."""

from __future__ import annotations

import multiprocessing
import threading
from array import array
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from random import Random
from typing import Final

import structlog

from outrider.errors import OutriderError
from outrider.models.chat import check_messages
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.front.front import as_tuple
from outrider.tokenization.front.job import Job, Outcome
from outrider.tokenization.front.processes import child
from outrider.tokenization.front.processes.choosing import two_choices

MAX_PENDING: Final = 4
"""Chats that one process has or that wait for it."""

Finish = Callable[[Job, Outcome], None]
log = structlog.get_logger()


class Sibling:
    """One process. Its own death costs no chat: what it had is encoded here instead."""

    def __init__(self, vocabulary: Vocabulary, backend: str, cache_bytes: int) -> None:
        self._vocabulary = vocabulary
        self._arguments = (vocabulary, backend, cache_bytes)
        self._pending: deque[tuple[Job, Finish]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self.num_pending = 0
        self.is_alive = True
        self.process: SpawnProcess | None = None
        self._thread = threading.Thread(target=self._run, name="tokenize-sibling", daemon=True)
        self._thread.start()

    def enter(self, job: Job, finish: Finish) -> bool:
        """Take the job; False if this process has enough to do, or is gone."""
        with self._changed:
            if not self.is_alive or self._is_closed or self.num_pending >= MAX_PENDING:
                return False
            self._pending.append((job, finish))
            self.num_pending += 1
            self._changed.notify()
        return True

    def close(self) -> None:
        """Give up what waits; the process ends after what it is at."""
        with self._changed:
            self._is_closed = True
            self._pending.clear()
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """After `close`: until the process is gone."""
        self._thread.join(timeout_s)

    # Everything below runs in the thread.

    def _run(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self.process = context.Process(
            target=child.serve, args=(theirs, *self._arguments), name="tokenize", daemon=True
        )
        self.process.start()
        theirs.close()
        with ours:
            while (taken := self._take()) is not None:
                job, finish = taken
                outcome = None if job.is_cancelled else self._outcome(ours, job)
                with self._changed:
                    self.num_pending -= 1  # first: who hears of the outcome may offer the next
                if outcome is not None:
                    finish(job, outcome)
        self.process.join()

    def _take(self) -> tuple[Job, Finish] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._is_closed)
            return self._pending.popleft() if self._pending else None

    def _outcome(self, connection: Connection, job: Job) -> Outcome:
        try:
            check_messages(job.messages)
            answer = child.ask(connection, job.messages, job.scope) if self.is_alive else b""
            if answer:
                return as_tuple(array("I", answer))
            return tuple(self._vocabulary.encode_chat(job.messages))
        except OutriderError as error:
            return error
        except (EOFError, OSError):
            self.is_alive = False
            log.warning("tokenizer process is gone", pid=self.process and self.process.pid)
            return self._outcome(connection, job)


class Siblings:
    """All of them, chosen by load."""

    def __init__(
        self, vocabulary: Vocabulary, backend: str, *, num_processes: int, cache_bytes: int
    ) -> None:
        """`backend`: the name of the one that this process uses."""
        self.members = [Sibling(vocabulary, backend, cache_bytes) for _ in range(num_processes)]
        self._rng = Random()

    def offer(self, job: Job, finish: Finish) -> bool:
        """Take the job and call `finish` from a thread; False if the chosen one has no room."""
        living = [member for member in self.members if member.is_alive]
        if not living:
            return False
        loads = [member.num_pending for member in living]
        return living[two_choices(loads, self._rng)].enter(job, finish)

    def close(self) -> None:
        """Give up what waits and end the processes, without waiting for them."""
        for member in self.members:
            member.close()
