"""Long texts as jobs of numbered parts, and which worker gets which part. Pure.

Workers pull: a worker has a number of slots, gets a part for each free one, and frees it by a
result. Parts are given out in turns: between those who ask, their clients, and the jobs of each. So
a text waits for others' parts, not for their whole texts. Within a job the lowest part goes first,
new or reassigned, for the reader waits for it. When too many jobs are open, whoever has most of
them loses the newest.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from outrider.errors import (
    OutriderError,
    OverloadedError,
    PoisonousRequestError,
    UnavailableError,
)
from outrider.fair_work.job_queue import given_up
from outrider.fair_work.shares import Shares
from outrider.fair_work.turns import ANYBODY, Requester, Turns

PayloadT = TypeVar("PayloadT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class DispatcherLimits:
    """Bounds of a dispatcher."""

    max_jobs: int = 64
    """Jobs open at once; for more, whoever has most of them loses one."""
    window_parts: int = 16
    """Parts of one job between the oldest whose result was not taken and the newest."""
    worker_timeout_s: float = 5.0
    """A worker not heard of for so long is dead."""
    hedge_delay_s: float = 10.0
    """A part that has been at a worker for so long is given to another one as well."""
    max_worker_deaths: int = 5
    """Workers that may die at one part before its job is given up."""
    no_worker_timeout_s: float = 30.0
    """Jobs fail when there has been no worker for so long."""


class PartId(NamedTuple):
    """Names a part for good; sequence numbers count from 0 in each job."""

    job: int
    sequence: int


@dataclass(slots=True)
class PendingPart(Generic[PayloadT]):
    """A part without a result."""

    payload: PayloadT
    assigned_at: dict[Hashable, float] = field(default_factory=dict)
    """Workers that have it, and since when, in seconds."""
    is_queued: bool = True
    num_deaths: int = 0
    """Workers that died while they worked on it."""


class TextJob(Generic[PayloadT, ResultT]):
    """One text: parts numbered as they are added, results taken in that order, whichever worker
    made them.

    Holds at most `window` parts and results together, and drops each part when its result comes.
    """

    cost = 1.0
    """Of a turn (`Turns`), which is a part."""
    size = 1.0
    """Each counts the same (`Shares`): all have the same window."""

    def __init__(self, window: int, requester: Requester = ANYBODY, number: int = 0) -> None:
        self.requester = requester
        """Who asks for it."""
        self.number = number
        """In order of arrival."""
        self.rank = 0.0
        """Set by `Turns`."""
        self._window = window
        self._next_sequence = 0
        self._next_taken = 0
        self._results: dict[int, ResultT] = {}
        self._queue: list[int] = []
        self.parts: dict[int, PendingPart[PayloadT]] = {}
        """By sequence number."""
        self.is_complete = False
        """Whether no part will be added."""
        self.error: OutriderError | None = None
        """Why the job failed."""
        self.is_given_up = False
        """Whether it lost its place to another one."""

    @property
    def flow(self) -> str:
        """Its origin, for `Turns`."""
        return self.requester.origin

    @property
    def has_room(self) -> bool:
        """Whether a part may be added."""
        return self._next_sequence - self._next_taken < self._window

    @property
    def is_done(self) -> bool:
        """Whether the last result was taken."""
        return self.is_complete and self._next_taken == self._next_sequence

    @property
    def num_queued(self) -> int:
        """Parts that wait for a worker."""
        return len(self._queue)

    def add(self, payload: PayloadT) -> int:
        """Queue a new part; returns its number."""
        if self.is_complete or not self.has_room:
            raise ValueError("the job is complete or full; ask has_room first")
        sequence = self._next_sequence
        self._next_sequence += 1
        self.parts[sequence] = PendingPart(payload)
        heapq.heappush(self._queue, sequence)
        return sequence

    def next_for(self, worker: Hashable) -> int | None:
        """Take the lowest part that `worker` does not have already off the queue."""
        passed = []
        chosen = None
        while self._queue and chosen is None:
            sequence = heapq.heappop(self._queue)
            if worker in self.parts[sequence].assigned_at:
                passed.append(sequence)
            else:
                chosen = sequence
        for sequence in passed:
            heapq.heappush(self._queue, sequence)
        if chosen is not None:
            self.parts[chosen].is_queued = False
        return chosen

    def requeue(self, sequence: int) -> None:
        """Queue a part for another worker, before all higher ones."""
        part = self.parts[sequence]
        if not part.is_queued:
            part.is_queued = True
            heapq.heappush(self._queue, sequence)

    def finish(self, sequence: int, result: ResultT) -> bool:
        """Keep a part's first result; False for any later one."""
        part = self.parts.pop(sequence, None)
        if part is None:
            return False
        if part.is_queued:
            self._queue.remove(sequence)
            heapq.heapify(self._queue)
        self._results[sequence] = result
        return True

    def take(self) -> list[ResultT]:
        """The results that are next in order; taking them makes room for parts."""
        taken = []
        while self._next_taken in self._results:
            taken.append(self._results.pop(self._next_taken))
            self._next_taken += 1
        return taken

    def fail(self, error: OutriderError) -> None:
        """Give up, and drop parts and results."""
        self.error = self.error or error
        self.parts.clear()
        self._queue.clear()
        self._results.clear()


@dataclass(frozen=True, slots=True)
class AssignedPart(Generic[PayloadT]):
    """A part for a worker."""

    part: PartId
    payload: PayloadT


@dataclass(frozen=True, slots=True)
class DispatcherStats:
    """A dispatcher's load, to scale workers by."""

    num_jobs: int
    num_queued: int
    """Parts that wait for a slot."""
    num_assigned: int
    """Parts at workers, those of closed jobs included."""
    num_slots: int
    """Slots of all workers together."""
    num_workers: int
    num_reassigned: int
    """Parts given to another worker, ever."""
    num_duplicates: int
    """Results that came too late to be wanted, ever."""


@dataclass(slots=True)
class _WorkerState:
    num_slots: int
    last_heard_s: float
    parts: dict[PartId, None] = field(default_factory=dict)
    """Its parts in the order in which it works on them."""


class PartDispatcher(Generic[PayloadT, ResultT]):
    """Jobs by number and workers by any name. Times are seconds of one clock."""

    def __init__(self, limits: DispatcherLimits) -> None:
        self._limits = limits
        self._jobs: dict[int, TextJob[PayloadT, ResultT]] = {}
        self._shares: Shares[TextJob[PayloadT, ResultT]] = Shares()
        """Jobs that are open and did not lose their place."""
        self._turns: Turns[TextJob[PayloadT, ResultT]] = Turns()
        """Jobs that had parts to give out when one was last asked for."""
        self._workers: dict[Hashable, _WorkerState] = {}
        self._last_job = 0
        self._last_worker_s: float | None = None
        """When `tick` last saw a worker, or no job."""
        self._num_reassigned = 0
        self._num_duplicates = 0

    # Calls for the owners of jobs.

    def open(self, requester: Requester = ANYBODY) -> int:
        """Open a job; returns its number. If there are too many, whoever has most of them loses the
        newest, which fails. Raises OverloadedError if that is this one."""
        self._last_job += 1
        job: TextJob[PayloadT, ResultT]
        job = TextJob(self._limits.window_parts, requester, self._last_job)
        lost = self._shares.admit(job, self._limits.max_jobs, math.inf)
        if lost is None:
            raise OverloadedError(
                f"{self._shares.count} long texts are being tokenized; try again in a moment",
                retry_delay_ms=500,
            )
        for one in lost:
            one.fail(given_up())
            one.is_given_up = True
        self._jobs[job.number] = job
        return job.number

    def job(self, number: int) -> TextJob[PayloadT, ResultT]:
        """An open job, to add parts to and take results from."""
        return self._jobs[number]

    def close(self, number: int) -> None:
        """Drop a job, done or not; results that still come for it are ignored."""
        job = self._jobs.pop(number, None)
        if job is None:
            return
        if not job.is_given_up:
            self._shares.remove(job)
        if job in self._turns:
            self._turns.remove(job)

    # Calls for workers.

    def join(self, worker: Hashable, num_slots: int, now: float) -> None:
        """A worker has joined; one of the same name is replaced."""
        self.leave(worker)
        self._workers[worker] = _WorkerState(num_slots, now)

    def heard(self, worker: Hashable, now: float) -> None:
        """A worker sent a heartbeat or anything else."""
        if worker in self._workers:
            self._workers[worker].last_heard_s = now

    def retire(self, worker: Hashable) -> None:
        """The worker leaves once it has done what it holds: it gets no further part."""
        if worker in self._workers:
            self._workers[worker].num_slots = 0

    def is_retired(self, worker: Hashable) -> bool:
        """Whether the worker leaves."""
        return worker in self._workers and not self._workers[worker].num_slots

    def is_released(self, worker: Hashable) -> bool:
        """Whether it leaves and holds nothing any more."""
        return self.is_retired(worker) and not self._workers[worker].parts

    def payload(self, worker: Hashable, part: PartId) -> PayloadT | None:
        """Of a part that `worker` holds and whose result is still wanted; else None."""
        state, job = self._workers.get(worker), self._jobs.get(part.job)
        if state is None or part not in state.parts or job is None:
            return None
        pending = job.parts.get(part.sequence)
        return None if pending is None else pending.payload

    def pull(self, worker: Hashable, now: float) -> AssignedPart[PayloadT] | None:
        """A part for a free slot of `worker`; None if it has none, or no part is queued."""
        state = self._workers.get(worker)
        if state is None or len(state.parts) >= state.num_slots:
            return None
        for job in self._jobs.values():
            if job.num_queued and job not in self._turns:
                self._turns.push(job)
        passed = []
        assigned = None
        while assigned is None and (turn := self._turns.peek()) is not None:
            sequence = turn.next_for(worker)
            if sequence is None:
                self._turns.remove(turn)
                passed.append(turn)
                continue
            self._turns.pop(turn)
            part_id, part = PartId(turn.number, sequence), turn.parts[sequence]
            part.assigned_at[worker] = now
            state.parts[part_id] = None
            assigned = AssignedPart(part_id, part.payload)
            passed.append(turn)
        for turn in passed:
            if turn.num_queued:
                self._turns.push(turn)
        return assigned

    def finish(self, worker: Hashable, part: PartId, result: ResultT) -> bool:
        """A result; False if it is not wanted (any more)."""
        job = self._released(worker, part)
        if job is not None and job.finish(part.sequence, result):
            return True
        self._num_duplicates += 1
        return False

    def fail(self, worker: Hashable, part: PartId, error: OutriderError) -> None:
        """No worker can do this part: its job fails."""
        job = self._released(worker, part)
        if job is not None and part.sequence in job.parts:
            job.fail(error)

    def leave(self, worker: Hashable, *, died: bool = True) -> None:
        """The worker is gone; its parts go to others. If it `died`, it did so at its first part.

        A job fails with PoisonousRequestError when `max_worker_deaths` happened at one part.
        """
        state = self._workers.pop(worker, None)
        for position, part_id in enumerate(state.parts if state else ()):
            job = self._jobs.get(part_id.job)
            part = job.parts.get(part_id.sequence) if job else None
            if job is None or part is None:
                continue
            del part.assigned_at[worker]
            part.num_deaths += died and position == 0
            if part.num_deaths >= self._limits.max_worker_deaths:
                job.fail(_poisonous(part_id, part.num_deaths))
            elif not part.assigned_at:
                self._reassign(job, part_id.sequence)

    def tick(self, now: float) -> list[Hashable]:
        """Queue slow parts for another worker too (hedging), and fail all jobs with
        UnavailableError when there was no worker for long. Returns the workers that timed out, to
        be ended and reported by `leave`."""
        if self._workers or not self._jobs or self._last_worker_s is None:
            self._last_worker_s = now
        elif now - self._last_worker_s >= self._limits.no_worker_timeout_s:
            for job in self._jobs.values():
                job.fail(UnavailableError("no worker is left; start one, or set worker_processes"))
        for job in self._jobs.values():
            for sequence, part in job.parts.items():
                newest = max(part.assigned_at.values(), default=now)
                if not part.is_queued and now - newest >= self._limits.hedge_delay_s:
                    self._reassign(job, sequence)
        return [
            name
            for name, state in self._workers.items()
            if now - state.last_heard_s >= self._limits.worker_timeout_s
        ]

    @property
    def stats(self) -> DispatcherStats:
        """The present load."""
        return DispatcherStats(
            num_jobs=len(self._jobs),
            num_queued=sum(job.num_queued for job in self._jobs.values()),
            num_assigned=sum(len(worker.parts) for worker in self._workers.values()),
            num_slots=sum(worker.num_slots for worker in self._workers.values()),
            num_workers=len(self._workers),
            num_reassigned=self._num_reassigned,
            num_duplicates=self._num_duplicates,
        )

    def _reassign(self, job: TextJob[PayloadT, ResultT], sequence: int) -> None:
        job.requeue(sequence)
        self._num_reassigned += 1

    def _released(self, worker: Hashable, part: PartId) -> TextJob[PayloadT, ResultT] | None:
        """Free the slot of a part that `worker` had; returns its job, if that is still open."""
        state = self._workers.get(worker)
        if state is None or part not in state.parts:
            return None
        del state.parts[part]
        return self._jobs.get(part.job)


def _poisonous(part: PartId, num_deaths: int) -> PoisonousRequestError:
    return PoisonousRequestError(
        f"{num_deaths} workers died at part {part.sequence} of the text; do not send it again"
    )
