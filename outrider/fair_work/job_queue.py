"""Decides which job is computed next. Pure.

Short jobs come first, long ones leave a worker to them, and those for prompts that are still being
typed come last, since no request waits for them yet. Within each of these classes workers are
shared fairly between those who ask, and when too much waits, whoever has most of it loses some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, TypeVar

from outrider.errors import OverloadedError
from outrider.fair_work.shares import Shares
from outrider.fair_work.turns import Requester, TurnClock, Turns

JobT = TypeVar("JobT", bound=Hashable)

SLICE_SIZE: Final = 1 << 15
"""A job of this size (characters or bytes) takes milliseconds, and several of them would hold up
all others: it is long. A worker does about so much of it at a time, and then whatever is next."""
_MAX_PASSED: Final = 8
"""Short jobs that may overtake a long one while a worker is free to take it."""


class JobClass(Enum):
    """How a job is scheduled."""

    SHORT = auto()
    LONG = auto()
    TYPEAHEAD = auto()
    """For a prompt that is still being typed."""

    @classmethod
    def of(cls, size: int) -> JobClass:
        """The class of a request of so many characters or bytes."""
        return cls.LONG if size >= SLICE_SIZE else cls.SHORT


@dataclass(slots=True, eq=False)
class _Entry(Generic[JobT]):
    """A job that waits or runs."""

    job: JobT
    job_class: JobClass
    requester: Requester
    size: int
    """Characters or bytes, which are kept in memory until all of it is done."""
    number: int
    """Of the jobs, in order of arrival."""
    left: int
    """Those of `size` that are still to be done."""
    rank: float = 0.0
    """Virtual time at which it starts among its origin's; see `Turns`."""

    @property
    def flow(self) -> str:
        return self.requester.origin

    @property
    def cost(self) -> float:
        return max(1, min(self.left, SLICE_SIZE))


class JobQueue(Generic[JobT]):
    """Jobs that wait for `num_workers` workers, and those in progress. Not thread-safe."""

    def __init__(self, num_workers: int, max_queued: int, max_pending_size: int) -> None:
        """At most `max_queued` jobs wait while all workers are busy, of at most `max_pending_size`
        characters (or bytes) with those in progress, if there is more than one; and as many
        typeahead prompts."""
        self._num_workers = num_workers
        self._max_pending = num_workers + max_queued
        self._max_pending_size = max_pending_size
        clock = TurnClock()
        self._queues: dict[JobClass, Turns[_Entry[JobT]]] = {one: Turns(clock) for one in JobClass}
        requests = Shares[_Entry[JobT]]()
        self._shares = {
            JobClass.SHORT: requests,
            JobClass.LONG: requests,
            JobClass.TYPEAHEAD: Shares[_Entry[JobT]](),
        }
        self._waiting: dict[JobT, _Entry[JobT]] = {}
        self._running: dict[JobT, _Entry[JobT]] = {}
        self._num_running: Counter[JobClass] = Counter()
        self._num_put = 0
        self._num_passed = 0
        """Short jobs that were taken while a long one waited."""

    @property
    def num_waiting(self) -> int:
        """Jobs that wait; typeahead prompts are not counted."""
        return self._shares[JobClass.SHORT].count

    def put(
        self, job: JobT, job_class: JobClass, requester: Requester, size: int
    ) -> Sequence[JobT]:
        """Add a job of so many characters (or bytes); the answer is the jobs that are given up for
        it. When too many of its class are pending, whoever asks for most loses the newest one (see
        `Shares`). Raises OverloadedError if that is the new one."""
        self._num_put += 1
        entry = _Entry(job, job_class, requester, size, self._num_put, size)
        shares = self._shares[job_class]
        running = [one for one in self._running.values() if self._shares[one.job_class] is shares]
        given_up = shares.admit(
            entry,
            self._max_pending,
            self._max_pending_size,
            taken_count=len(running),
            taken_size=sum(one.size for one in running),
        )
        if given_up is None:
            raise OverloadedError(
                f"{shares.count + len(running)} requests already wait to be computed here, and "
                "most of them are yours; try again",
                retry_delay_ms=100,
            )
        self._wait(entry)
        for one in given_up:
            self._unwait(one)
        return [one.job for one in given_up]

    def take(self) -> JobT | None:
        """The next job for a free worker, which calls `finish` or `put_back` when it is done with
        it for now; None if none can run now."""
        job_class = self._next_class()
        if job_class is None:
            return None
        self._num_passed = self._num_passed + 1 if job_class is JobClass.SHORT else 0
        queue = self._queues[job_class]
        entry = queue.peek()
        assert entry is not None
        queue.pop(entry)
        self._shares[job_class].remove(entry)
        del self._waiting[entry.job]
        self._running[entry.job] = entry
        self._num_running[job_class] += 1
        return entry.job

    def finish(self, job: JobT) -> None:
        """A worker is through with a job."""
        self._stopped(job)

    def put_back(self, job: JobT) -> None:
        """A worker has done a slice of a long job, which waits for the next one."""
        entry = self._stopped(job)
        entry.left = max(1, entry.left - SLICE_SIZE)
        self._shares[entry.job_class].add(entry)
        self._wait(entry)

    def remove(self, job: JobT) -> bool:
        """Give up a job that waits; False if a worker has it, or had."""
        entry = self._waiting.get(job)
        if entry is not None:
            self._leave(entry)
        return entry is not None

    def clear(self) -> None:
        """Give up everything that waits."""
        for entry in list(self._waiting.values()):
            self._leave(entry)

    def _next_class(self) -> JobClass | None:
        has = {one: bool(self._queues[one]) for one in JobClass}
        num_slow = self._num_running[JobClass.LONG] + self._num_running[JobClass.TYPEAHEAD]
        may_be_slow = num_slow < max(1, self._num_workers - 1)
        if has[JobClass.LONG] and may_be_slow:
            if not has[JobClass.SHORT] or self._num_passed >= _MAX_PASSED:
                return JobClass.LONG
        if has[JobClass.SHORT]:
            return JobClass.SHORT
        if has[JobClass.TYPEAHEAD] and may_be_slow and not has[JobClass.LONG]:
            return JobClass.TYPEAHEAD
        return None

    def _wait(self, entry: _Entry[JobT]) -> None:
        self._waiting[entry.job] = entry
        self._queues[entry.job_class].push(entry)

    def _stopped(self, job: JobT) -> _Entry[JobT]:
        entry = self._running.pop(job)
        self._num_running[entry.job_class] -= 1
        return entry

    def _leave(self, entry: _Entry[JobT]) -> None:
        self._shares[entry.job_class].remove(entry)
        self._unwait(entry)

    def _unwait(self, entry: _Entry[JobT]) -> None:
        del self._waiting[entry.job]
        self._queues[entry.job_class].remove(entry)


def given_up() -> OverloadedError:
    """The error for a job that has lost its place."""
    return OverloadedError(
        "too many requests wait to be computed here, and most of them are yours; send fewer at "
        "once",
        retry_delay_ms=100,
    )
