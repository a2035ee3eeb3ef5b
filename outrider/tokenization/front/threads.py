"""The threads that tokenize. Started once and handed their work directly: an executor's futures
cost more than a short chat."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Final, Generic

from outrider.tokenization.front.line import JobT, Kind, Line

SWITCH_INTERVAL_S: Final = 0.0005
"""What a worker does besides the backend's work (the template, tuples of ids) holds the GIL, and an
event loop that wakes up meanwhile waits for it this long. Python's own 5 ms are too long for it."""


class Threads(Generic[JobT]):
    """Workers on a Line. The backend releases the GIL, so an event loop goes on beside them."""

    def __init__(self, num_workers: int, max_queued: int, work: Callable[[JobT], None]) -> None:
        """`work` is called in a worker, with every job, and does not raise. Threads of this process
        take turns more often from now on."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        self._line: Line[JobT] = Line(num_workers, max_queued)
        self._work = work
        self._num_workers = num_workers
        self._is_closed = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, name="tokenize", daemon=True)
            for _ in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_saturated(self) -> bool:
        """Whether as many chats wait as there are workers, so that one more waits for two."""
        return self._line.num_waiting >= self._num_workers

    def enter(self, job: JobT, kind: Kind) -> None:
        """Raises OverloadedError when too many of its kind wait already."""
        with self._changed:
            self._line.enter(job, kind)
            self._changed.notify()

    def remove(self, job: JobT, kind: Kind) -> bool:
        """Take a job out of the line; False if a worker has it, or had it."""
        with self._changed:
            return self._line.remove(job, kind)

    def close(self) -> None:
        """Give up what waits; what runs ends by itself."""
        with self._changed:
            self._is_closed = True
            self._line.clear()
            self._changed.notify_all()

    def join(self) -> None:
        """After `close`: until the workers are through with what they are at. A thread that is
        inside a library when the interpreter ends would abort the process."""
        for thread in self._threads:
            thread.join()

    # Everything below runs in the workers.

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            job, kind = taken
            self._work(job)
            with self._changed:
                self._line.leave(kind)
                self._changed.notify()  # another kind may have waited for this worker to be free

    def _take(self) -> tuple[JobT, Kind] | None:
        with self._changed:
            while not self._is_closed:
                taken = self._line.take()
                if taken is not None:
                    return taken
                self._changed.wait()
        return None
