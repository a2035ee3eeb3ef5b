"""Decides which job is tokenized next, and by which of several processes. Pure.

Short chats come first, long ones leave a worker to them, and prompts that are still being typed
come last, since no request waits for them yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from random import Random
from typing import Final, Generic, TypeVar

from outrider.errors import OverloadedError

JobT = TypeVar("JobT")

LONG_CHARS: Final = 32_768
"""A text from here on takes milliseconds, and more than one of them would hold up all others."""
_MAX_PASSED: Final = 8
"""Short chats that may overtake a long one while a worker is free to take it."""


class JobClass(Enum):
    """How a job is scheduled."""

    SHORT = auto()
    LONG = auto()
    TYPEAHEAD = auto()
    """A prompt that is still being typed."""


_CHATS: Final = (JobClass.SHORT, JobClass.LONG)


class JobQueue(Generic[JobT]):
    """Jobs that wait for `num_workers` workers, and those in progress. Not thread-safe."""

    def __init__(self, num_workers: int, max_queued: int) -> None:
        """At most `max_queued` chats wait while all workers are busy, and as many typeahead
        prompts."""
        self._num_workers = num_workers
        self._max_pending = num_workers + max_queued
        self._queues: dict[JobClass, deque[JobT]] = {one: deque() for one in JobClass}
        self._running: dict[JobClass, int] = dict.fromkeys(JobClass, 0)
        self._num_passed = 0
        """Short chats that were taken while a long one waited."""

    @property
    def num_waiting(self) -> int:
        """Chats that wait; typeahead prompts are not counted."""
        return sum(len(self._queues[one]) for one in _CHATS)

    def put(self, job: JobT, job_class: JobClass) -> None:
        """Add a job. Raises OverloadedError when too many of its class are pending."""
        classes = _CHATS if job_class in _CHATS else (job_class,)
        num_pending = sum(len(self._queues[one]) + self._running[one] for one in classes)
        if num_pending >= self._max_pending:
            raise OverloadedError(
                f"{num_pending} prompts already wait for tokenization; try again",
                retry_delay_ms=100,
            )
        self._queues[job_class].append(job)

    def take(self) -> tuple[JobT, JobClass] | None:
        """The next job for a free worker, which calls `finish` when it is done; None if none can
        run now."""
        job_class = self._next_class()
        if job_class is None:
            return None
        self._num_passed = self._num_passed + 1 if job_class is JobClass.SHORT else 0
        self._running[job_class] += 1
        return self._queues[job_class].popleft(), job_class

    def _next_class(self) -> JobClass | None:
        has = {one: bool(self._queues[one]) for one in JobClass}
        num_slow = self._running[JobClass.LONG] + self._running[JobClass.TYPEAHEAD]
        may_be_slow = num_slow < max(1, self._num_workers - 1)
        if has[JobClass.LONG] and may_be_slow:
            if not has[JobClass.SHORT] or self._num_passed >= _MAX_PASSED:
                return JobClass.LONG
        if has[JobClass.SHORT]:
            return JobClass.SHORT
        if has[JobClass.TYPEAHEAD] and may_be_slow and not has[JobClass.LONG]:
            return JobClass.TYPEAHEAD
        return None

    def finish(self, job_class: JobClass) -> None:
        """A worker is through with a job of that class."""
        self._running[job_class] -= 1

    def remove(self, job: JobT, job_class: JobClass) -> bool:
        """Give up a job that waits; False if a worker has taken it."""
        try:
            self._queues[job_class].remove(job)
        except ValueError:
            return False
        return True

    def clear(self) -> None:
        """Give up everything that waits."""
        for queue in self._queues.values():
            queue.clear()


def two_choices(loads: Sequence[int], rng: Random) -> int:
    """The index of the less loaded of two picked at random: near the best of all, without herding
    (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001). `loads` is not
    empty."""
    if len(loads) == 1:
        return 0
    first, second = rng.sample(range(len(loads)), 2)
    return first if loads[first] <= loads[second] else second
