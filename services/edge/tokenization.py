"""Chats to prompt ids without holding the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import structlog

from outrider.errors import OutriderError, OverloadedError
from outrider.models.chat import Message
from outrider.models.vocabulary import Vocabulary

log = structlog.get_logger()

Outcome: TypeAlias = tuple[int, ...] | OutriderError
"""The prompt ids, or what Vocabulary.encode_chat raised."""


@dataclass(slots=True, eq=False)
class Job:
    """One chat on its way to ids."""

    messages: Sequence[Message]
    answer: Callable[[Outcome], None]
    is_typed: bool = False
    """Whether its prompt is still being typed: it may wait."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    is_cancelled: bool = False

    def deliver(self, outcome: Outcome) -> None:
        """In the event loop: hand the outcome over, if it is still wanted."""
        if not self.is_cancelled:
            self.answer(outcome)


class Tokenization:
    """Threads that wait for chats. Verbs belong to the event loop.

    The threads are started once and handed their work directly: an executor's futures cost more
    than the tokenization of a short chat. The vocabulary releases the GIL while it encodes, so
    the loop goes on beside them.
    """

    def __init__(self, vocabulary: Vocabulary, *, num_workers: int, max_queued: int) -> None:
        """At most `max_queued` chats wait while all workers are busy, and as many prompts that are
        being typed. These come after the chats, and leave a worker to them if there are two."""
        self._vocabulary = vocabulary
        self._num_workers = num_workers
        self._max_queued = max_queued
        self._running: list[Job] = []
        self._waiting: deque[Job] = deque()
        self._typed: deque[Job] = deque()
        self._is_closed = False
        self._changed = threading.Condition()
        for _ in range(num_workers):
            threading.Thread(target=self._work, name="tokenize", daemon=True).start()

    def submit(
        self,
        messages: Sequence[Message],
        answer: Callable[[Outcome], None],
        *,
        is_typed: bool = False,
    ) -> Job:
        """Call `answer` in the event loop once the ids are there. Raises OverloadedError when too
        many of its kind wait already."""
        job = Job(messages, answer, is_typed)
        queue = self._typed if is_typed else self._waiting
        with self._changed:
            num_running = sum(other.is_typed == is_typed for other in self._running)
            num_pending = len(queue) + num_running
            if num_pending >= self._num_workers + self._max_queued:
                raise OverloadedError(
                    f"{num_pending} prompts wait for tokenization; try again", retry_delay_ms=100
                )
            queue.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: Job) -> None:
        """The outcome is not wanted any more; it will not be delivered."""
        job.is_cancelled = True
        queue = self._typed if job.is_typed else self._waiting
        with self._changed, contextlib.suppress(ValueError):  # a worker has it, or had it
            queue.remove(job)

    def close(self) -> None:
        """Give up what waits; what runs ends by itself."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._typed.clear()
            self._changed.notify_all()

    # Everything below runs in the workers.

    def _work(self) -> None:
        while (job := self._take()) is not None:
            outcome = self._encode(job.messages)
            with self._changed:
                self._running.remove(job)
                self._changed.notify()  # typed text may have waited for this worker to be free
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                job.loop.call_soon_threadsafe(job.deliver, outcome)

    def _take(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._next_queue() or self._is_closed)
            if self._is_closed:
                return None
            job = self._next_queue().popleft()
            self._running.append(job)
            return job

    def _next_queue(self) -> deque[Job]:
        """Empty if there is nothing to do now."""
        num_typed = sum(job.is_typed for job in self._running)
        if not self._waiting and num_typed < max(1, self._num_workers - 1):
            return self._typed
        return self._waiting

    def _encode(self, messages: Sequence[Message]) -> Outcome:
        try:
            return tuple(self._vocabulary.encode_chat(messages))
        except OutriderError as error:
            return error
        except Exception as failure:
            # A defect of the edge fails this chat and leaves the worker to the others.
            log.exception("tokenization failed")
            return OutriderError(f"the edge failed to tokenize: {type(failure).__name__}")
