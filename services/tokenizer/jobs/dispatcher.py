"""Which worker gets which part, and what becomes of it when the worker is dead or slow.

Workers pull: a worker has as many places as it says, gets a part for each free one, and frees it by
a result. Jobs take turns, so a short text waits for parts and not for texts. Within a job the first
part goes first, given back or new, for it is what the reader waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic

from outrider.errors import OutriderError, OverloadedError, PoisonousRequestError
from services.tokenizer.jobs.limits import Limits
from services.tokenizer.jobs.parts import Job, PartId, PayloadT, ResultT


@dataclass(frozen=True, slots=True)
class Task(Generic[PayloadT]):
    """A part for a worker."""

    part: PartId
    payload: PayloadT


@dataclass(frozen=True, slots=True)
class Figures:
    """Where a dispatcher stands: what to scale workers by."""

    num_jobs: int
    num_queued: int
    """Parts that wait for a place."""
    num_held: int
    """Parts at workers, those of jobs that are closed included."""
    num_places: int
    """Parts that all workers together may hold."""
    num_workers: int
    num_reassigned: int
    """Parts given to another worker, ever."""
    num_duplicates: int
    """Results that came too late to be wanted, ever."""


@dataclass(slots=True)
class _Worker:
    num_places: int
    heard_s: float
    held: dict[PartId, None] = field(default_factory=dict)
    """In the order they were given, which is that of its work."""


class Dispatcher(Generic[PayloadT, ResultT]):
    """Jobs by number and workers by any name. Times are seconds of one clock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._jobs: dict[int, Job[PayloadT, ResultT]] = {}
        self._turns: deque[int] = deque()
        self._workers: dict[Hashable, _Worker] = {}
        self._last_job = 0
        self._num_reassigned = 0
        self._num_duplicates = 0

    # What callers say.

    def open(self) -> int:
        """A new job's number. Raises OverloadedError when there are too many."""
        if len(self._jobs) >= self._limits.max_jobs:
            raise OverloadedError(
                f"{len(self._jobs)} long texts are being tokenized: try again in a moment.",
                retry_delay_ms=500,
            )
        self._last_job += 1
        self._jobs[self._last_job] = Job(self._limits.window_parts)
        self._turns.append(self._last_job)
        return self._last_job

    def job(self, number: int) -> Job[PayloadT, ResultT]:
        """An open job, to add parts to and take results from."""
        return self._jobs[number]

    def close(self, number: int) -> None:
        """Forget a job, done or not; results of its parts that still come are dropped."""
        if self._jobs.pop(number, None) is not None:
            self._turns.remove(number)

    # What workers say.

    def join(self, worker: Hashable, num_places: int, now: float) -> None:
        """A worker is there; the name of one that is known is taken over by the new one."""
        self.leave(worker)
        self._workers[worker] = _Worker(num_places, now)

    def heard(self, worker: Hashable, now: float) -> None:
        """Any sign of life."""
        if worker in self._workers:
            self._workers[worker].heard_s = now

    def pull(self, worker: Hashable, now: float) -> Task[PayloadT] | None:
        """A part for a free place of `worker`; None if it has none, or nothing waits."""
        state = self._workers.get(worker)
        if state is None or len(state.held) >= state.num_places:
            return None
        for _ in range(len(self._turns)):
            number = self._turns[0]
            self._turns.rotate(-1)
            job = self._jobs[number]
            sequence = job.next_for(worker)
            if sequence is not None:
                part, name = job.parts[sequence], PartId(number, sequence)
                part.holders[worker] = now
                state.held[name] = None
                return Task(name, part.payload)
        return None

    def finish(self, worker: Hashable, part: PartId, result: ResultT) -> bool:
        """A result; False if it is not wanted (any more)."""
        job = self._released(worker, part)
        if job is not None and job.finish(part.sequence, result):
            return True
        self._num_duplicates += 1
        return False

    def fail(self, worker: Hashable, part: PartId, error: OutriderError) -> None:
        """The part cannot be done, by no worker: its job fails."""
        job = self._released(worker, part)
        if job is not None and part.sequence in job.parts:
            job.fail(error)

    def leave(self, worker: Hashable, *, died: bool = True) -> None:
        """The worker is gone; its parts go to others. One that `died` did so at its first part.

        The job of a part at which too many died fails with PoisonousRequestError.
        """
        state = self._workers.pop(worker, None)
        for place, name in enumerate(state.held if state else ()):
            job = self._jobs.get(name.job)
            part = job.parts.get(name.sequence) if job else None
            if job is None or part is None:
                continue
            del part.holders[worker]
            part.num_deaths += died and place == 0
            if part.num_deaths >= self._limits.max_deaths:
                job.fail(_poisonous(name, part.num_deaths))
            elif not part.holders:
                self._reassign(job, name.sequence)

    def tick(self, now: float) -> list[Hashable]:
        """Parts that are slow wait for another worker too. Returns the silent workers, to be ended
        and reported by `leave`."""
        for job in self._jobs.values():
            for sequence, part in job.parts.items():
                newest = max(part.holders.values(), default=now)
                if not part.is_queued and now - newest >= self._limits.slow_s:
                    self._reassign(job, sequence)
        return [
            name
            for name, state in self._workers.items()
            if now - state.heard_s >= self._limits.silent_s
        ]

    @property
    def figures(self) -> Figures:
        """Where it stands now."""
        return Figures(
            num_jobs=len(self._jobs),
            num_queued=sum(job.num_queued for job in self._jobs.values()),
            num_held=sum(len(worker.held) for worker in self._workers.values()),
            num_places=sum(worker.num_places for worker in self._workers.values()),
            num_workers=len(self._workers),
            num_reassigned=self._num_reassigned,
            num_duplicates=self._num_duplicates,
        )

    def _reassign(self, job: Job[PayloadT, ResultT], sequence: int) -> None:
        job.requeue(sequence)
        self._num_reassigned += 1

    def _released(self, worker: Hashable, part: PartId) -> Job[PayloadT, ResultT] | None:
        """The job of a part that `worker` had, whose place is free now; None for any other."""
        state = self._workers.get(worker)
        if state is None or part not in state.held:
            return None
        del state.held[part]
        return self._jobs.get(part.job)


def _poisonous(part: PartId, num_deaths: int) -> PoisonousRequestError:
    return PoisonousRequestError(
        f"{num_deaths} workers died at part {part.sequence} of the text: do not send it again."
    )
