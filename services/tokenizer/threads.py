"""Runs requests in threads, so that the event loop never tokenizes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from outrider.tokenization.backends.equivalence import is_defect
from outrider.tokenization.pool.job_queue import JobClass, Requester, given_up
from outrider.tokenization.pool.pool import defect
from outrider.tokenization.pool.threads import WorkerThreads

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


class _Call(Generic[RequestT, AnswerT]):
    """One request, run in a thread and answered in the event loop."""

    def __init__(self, work: Callable[[RequestT], AnswerT], request: RequestT) -> None:
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._request = request
        self.answer: asyncio.Future[AnswerT] = self._loop.create_future()

    def run(self) -> bool:
        """In a thread: do the work, all at once, and give the loop its outcome."""
        try:
            answer = self._work(self._request)
        except BaseException as failure:
            if not is_defect(failure):
                raise
            # What is no Exception (a panic) cannot be handed to who waits as it is.
            is_told = isinstance(failure, Exception)
            self._deliver(self._fail, failure if is_told else defect(failure))
        else:
            self._deliver(self._succeed, answer)
        return False

    def give_up(self) -> None:
        """It has lost its place in the queue."""
        self._fail(given_up())

    def _deliver(self, settle: Callable[[Any], None], outcome: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(settle, outcome)

    def _succeed(self, answer: AnswerT) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class RequestThreads:
    """Threads with a queue that is bounded in requests and in their bytes. Long texts never take
    the last of several threads, which is left to short ones."""

    def __init__(self, threads: int, max_pending: int, max_pending_bytes: int) -> None:
        self._threads: WorkerThreads[_Call[Any, Any]] = WorkerThreads(
            threads, max(0, max_pending - threads), max_pending_bytes, _Call.run, _Call.give_up
        )
        self.num_pending = 0
        """Requests queued or running."""
        self._idle = asyncio.Event()

    async def run(
        self,
        work: Callable[[RequestT], AnswerT],
        request: RequestT,
        job_class: JobClass = JobClass.SHORT,
        *,
        num_bytes: int = 0,
        peer: str = "",
    ) -> AnswerT:
        """Run `work(request)`, of a request of so many bytes, in a thread, as one of `peer`:
        threads are shared equally between peers. Cancelled while queued, it never starts. However
        large, one is run if nothing else is pending.

        Raises OverloadedError when the queue is full, and what `work` raises.
        """
        call = _Call(work, request)
        self._threads.put(call, job_class, Requester(peer), num_bytes)
        self.num_pending += 1
        try:
            return await call.answer
        finally:
            self._threads.remove(call)
            self.num_pending -= 1
            if not self.num_pending:
                self._idle.set()

    async def drain(self, timeout_s: float) -> None:
        """Wait until nothing is queued or running, for `timeout_s` at most."""
        if not self.num_pending:
            return
        self._idle.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    def close(self) -> None:
        """Drop queued requests, and end the threads after their present ones."""
        self._threads.close()
        self._threads.join()
