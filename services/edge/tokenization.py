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
        """At most `max_queued` chats wait while all workers are busy."""
        self._vocabulary = vocabulary
        self._max_pending = num_workers + max_queued
        self._num_running = 0
        self._waiting: deque[Job] = deque()
        self._is_closed = False
        self._changed = threading.Condition()
        for _ in range(num_workers):
            threading.Thread(target=self._work, name="tokenize", daemon=True).start()

    def submit(self, messages: Sequence[Message], answer: Callable[[Outcome], None]) -> Job:
        """Call `answer` in the event loop once the ids are there. Raises OverloadedError when too
        many chats wait already."""
        job = Job(messages, answer)
        with self._changed:
            num_pending = len(self._waiting) + self._num_running
            if num_pending >= self._max_pending:
                raise OverloadedError(
                    f"{num_pending} prompts wait for tokenization; try again", retry_delay_ms=100
                )
            self._waiting.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: Job) -> None:
        """The outcome is not wanted any more; it will not be delivered."""
        job.is_cancelled = True
        with self._changed, contextlib.suppress(ValueError):  # a worker has it, or had it
            self._waiting.remove(job)

    def close(self) -> None:
        """Give up what waits; what runs ends by itself."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()

    # Everything below runs in the workers.

    def _work(self) -> None:
        while (job := self._take()) is not None:
            outcome = self._encode(job.messages)
            with self._changed:
                self._num_running -= 1
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                job.loop.call_soon_threadsafe(job.deliver, outcome)

    def _take(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return None
            self._num_running += 1
            return self._waiting.popleft()

    def _encode(self, messages: Sequence[Message]) -> Outcome:
        try:
            return tuple(self._vocabulary.encode_chat(messages))
        except OutriderError as error:
            return error
        except Exception as failure:
            # A defect of the edge fails this chat and leaves the worker to the others.
            log.exception("tokenization failed")
            return OutriderError(f"the edge failed to tokenize: {type(failure).__name__}")
