"""The threads that tokenize, so that no event loop ever does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from outrider.tokenization.pool.job_queue import Kind
from outrider.tokenization.pool.threads import Threads

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


class _Call(Generic[RequestT, AnswerT]):
    """One request on its way through a thread."""

    def __init__(self, work: Callable[[RequestT], AnswerT], request: RequestT) -> None:
        self._loop = asyncio.get_running_loop()
        self._work, self._request = work, request
        self.answer: asyncio.Future[AnswerT] = self._loop.create_future()

    def run(self) -> None:
        """In a thread: work, and tell the loop."""
        try:
            deliver, outcome = self._succeed, self._work(self._request)
        except Exception as error:
            self._tell(self._fail, error)
        else:
            self._tell(deliver, outcome)

    def _tell(self, deliver: Callable[[Any], None], outcome: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(deliver, outcome)

    def _succeed(self, answer: AnswerT) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Workers:
    """Threads with a bounded queue, in which long texts leave a thread to the short ones."""

    def __init__(self, threads: int, max_pending: int) -> None:
        self._threads: Threads[_Call[Any, Any]] = Threads(
            threads, max(0, max_pending - threads), _Call.run
        )
        self.num_pending = 0
        """Requests queued or running."""
        self._idle = asyncio.Event()

    async def run(
        self,
        work: Callable[[RequestT], AnswerT],
        request: RequestT,
        kind: Kind = Kind.SHORT,
    ) -> AnswerT:
        """Run `work(request)` in a thread; cancelled while queued, it never starts.

        Raises OverloadedError when the queue is full, and what `work` raises.
        """
        call = _Call(work, request)
        self._threads.enter(call, kind)
        self.num_pending += 1
        try:
            return await call.answer
        finally:
            self._threads.remove(call, kind)
            self.num_pending -= 1
            if not self.num_pending:
                self._idle.set()

    async def drain(self, timeout_s: float) -> None:
        """Until nothing is queued or running, at most for `timeout_s`."""
        if not self.num_pending:
            return
        self._idle.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    def close(self) -> None:
        """Drop what is queued and end the threads after what they are at."""
        self._threads.close()
        self._threads.join()
