"""The worker threads. Started once and handed their jobs directly: an executor's futures cost more
than tokenizing a short chat."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Final, Generic

from outrider.fair_work.job_queue import JobClass, JobQueue, JobT
from outrider.fair_work.turns import Requester

SWITCH_INTERVAL_S: Final = 0.0005
"""Interval at which threads of this process hand over the GIL, instead of Python's 5 ms. A worker
holds the GIL for what it does in Python (a chat template, tuples of ids), and an event loop that
wakes up meanwhile waits this long for it."""


class WorkerThreads(Generic[JobT]):
    """Threads that work on a JobQueue. Where the work releases the GIL, an event loop runs beside
    them."""

    def __init__(
        self,
        num_workers: int,
        max_queued: int,
        max_pending_size: int,
        work: Callable[[JobT], bool],
        give_up: Callable[[JobT], None],
        *,
        finished: Callable[[JobT], None] = lambda _: None,
        name: str = "tokenize",
    ) -> None:
        """`work` is called in a worker with every job and does not raise; it returns whether more
        of the job is to be done, when it is called again. `give_up` is called by `put`, with a job
        that waited and has lost its place. `finished` is called in a worker with a job of which
        no more is to be done, when its place and its size are free again. Sizes as in JobQueue.
        Sets the interpreter's switch interval to SWITCH_INTERVAL_S at most."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        self._queue: JobQueue[JobT] = JobQueue(num_workers, max_queued, max_pending_size)
        self._give_up = give_up
        self._work = work
        self._finished = finished
        self._num_workers = num_workers
        self._is_closed = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, name=name, daemon=True) for _ in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_saturated(self) -> bool:
        """Whether as many jobs wait as there are workers, so that one more waits for two."""
        return self._queue.num_waiting >= self._num_workers

    def put(self, job: JobT, job_class: JobClass, requester: Requester, size: int) -> None:
        """Raises OverloadedError when too many of its class wait already, and none of them is given
        up for it."""
        with self._changed:
            given_up = self._queue.put(job, job_class, requester, size)
            self._changed.notify()
        for one in given_up:
            self._give_up(one)

    def remove(self, job: JobT) -> bool:
        """Give up a job that waits; False if a worker has taken it."""
        with self._changed:
            return self._queue.remove(job)

    def close(self) -> None:
        """Give up what waits; what runs ends by itself."""
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            self._changed.notify_all()

    def join(self) -> None:
        """After `close`: wait until the workers have finished their current jobs. A thread that is
        inside a library when the interpreter ends would abort the process."""
        for thread in self._threads:
            thread.join()

    # Everything below runs in the workers.

    def _run(self) -> None:
        while (job := self._take()) is not None:
            has_more = False
            try:
                has_more = self._work(job)
            finally:
                with self._changed:
                    if has_more and not self._is_closed:
                        self._queue.put_back(job)
                    else:
                        self._queue.finish(job)
                    self._changed.notify()  # a job of another class may be allowed to run now
            if not has_more:
                self._finished(job)

    def _take(self) -> JobT | None:
        with self._changed:
            while not self._is_closed:
                taken = self._queue.take()
                if taken is not None:
                    return taken
                self._changed.wait()
        return None
