"""Work of requests in threads, so that the event loop never computes for long: shared fairly
between those who ask, bounded, in slices, and given up with its request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from outrider.fair_work.defects import defect, is_defect
from outrider.fair_work.job_queue import JobClass, given_up
from outrider.fair_work.threads import WorkerThreads
from outrider.fair_work.turns import Requester

AnswerT = TypeVar("AnswerT")


class _Call(Generic[AnswerT]):
    """One request's work, done in a thread and answered in the event loop."""

    def __init__(self, slices: Generator[object, None, AnswerT], what: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._slices = slices
        self._what = what
        self._outcome: Callable[[], None] | None = None
        self.answer: asyncio.Future[AnswerT] = self._loop.create_future()
        self.is_cancelled = False

    def work(self) -> bool:
        """In a thread: one slice; returns whether there is another one that is wanted."""
        if self.is_cancelled:
            return False
        try:
            next(self._slices)
        except StopIteration as done:
            self._outcome = partial(self._succeed, done.value)
            return False
        except BaseException as failure:
            if not is_defect(failure):
                raise
            # What is no Exception (a panic) cannot be handed to who waits as it is.
            told = failure if isinstance(failure, Exception) else defect(failure, self._what)
            self._outcome = partial(self._fail, told)
            return False
        return not self.is_cancelled

    def give_up(self) -> None:
        """It has lost its place in the queue."""
        self._fail(given_up())

    def deliver(self) -> None:
        """In a thread, when its place is free again: give the loop the outcome. Whoever has the
        answer may ask at once for as much again."""
        if self._outcome is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._outcome)

    def _succeed(self, answer: AnswerT) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class FairThreads:
    """Threads with a queue that is bounded in requests and in their bytes. They are shared equally
    between those who ask; long work never takes the last of several threads, which is left to
    short work."""

    def __init__(
        self,
        threads: int,
        max_pending: int,
        max_pending_bytes: int,
        *,
        name: str = "compute",
        what: str = "the computation",
    ) -> None:
        """At most `max_pending` requests wait or run. `name`: of the threads. `what`: they do, in
        errors of defects."""
        self._threads: WorkerThreads[_Call[Any]] = WorkerThreads(
            threads,
            max(0, max_pending - threads),
            max_pending_bytes,
            _Call.work,
            _Call.give_up,
            finished=_Call.deliver,
            name=name,
        )
        self._what = what
        self.num_pending = 0
        """Requests queued or running."""
        self._idle = asyncio.Event()

    async def run(
        self, work: Callable[[], AnswerT], requester: Requester, *, num_bytes: int = 0
    ) -> AnswerT:
        """Like `run_slices`, for work that takes no longer than a slice."""
        return await self.run_slices(_at_once(work), requester, num_bytes=num_bytes)

    async def run_slices(
        self,
        slices: Generator[object, None, AnswerT],
        requester: Requester,
        *,
        num_bytes: int = 0,
        job_class: JobClass | None = None,
    ) -> AnswerT:
        """What `slices` returns, run in threads a slice at a time, for a request of so many bytes.
        `job_class`: None: by the bytes. Cancelled while it waits, it never starts; while it runs,
        it ends after the present slice. However large, one is run if nothing else is pending.

        Raises OverloadedError when too much waits and most of it is the requester's, and what
        `slices` raises.
        """
        call = _Call(slices, self._what)
        self._threads.put(call, job_class or JobClass.of(num_bytes), requester, num_bytes)
        self.num_pending += 1
        try:
            return await call.answer
        finally:
            call.is_cancelled = True
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
        """Drop queued requests, and end the threads after their present slices, for which this
        blocks."""
        self._threads.close()
        self._threads.join()


def _at_once(work: Callable[[], AnswerT]) -> Generator[object, None, AnswerT]:
    yield from ()
    return work()
