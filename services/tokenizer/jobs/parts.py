"""One job: parts numbered as they come, results taken in that order, whoever made them."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from outrider.errors import OutriderError

PayloadT = TypeVar("PayloadT")
ResultT = TypeVar("ResultT")


class PartId(NamedTuple):
    """Names a part for good; sequence numbers count from 0 in each job."""

    job: int
    sequence: int


@dataclass(slots=True)
class Part(Generic[PayloadT]):
    """A part without a result."""

    payload: PayloadT
    holders: dict[Hashable, float] = field(default_factory=dict)
    """Workers that have it, and since when, in seconds."""
    is_queued: bool = True
    num_deaths: int = 0


class Job(Generic[PayloadT, ResultT]):
    """Holds at most `window` parts and results together, and forgets each part with its result."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._next_sequence = 0
        self._next_taken = 0
        self._results: dict[int, ResultT] = {}
        self._queue: list[int] = []
        self.parts: dict[int, Part[PayloadT]] = {}
        """By sequence number; no results yet."""
        self.is_whole = False
        """Whether no part will be added."""
        self.error: OutriderError | None = None
        """Why nothing will come of it any more."""

    @property
    def has_room(self) -> bool:
        """Whether a part may be added."""
        return self._next_sequence - self._next_taken < self._window

    @property
    def is_done(self) -> bool:
        """Whether every result was taken that will ever be."""
        return self.is_whole and self._next_taken == self._next_sequence

    @property
    def num_queued(self) -> int:
        """Parts that wait for a worker."""
        return len(self._queue)

    def add(self, payload: PayloadT) -> int:
        """The number of a new part, which waits for a worker."""
        if self.is_whole or not self.has_room:
            raise ValueError("the job is whole or full: ask has_room first")
        sequence = self._next_sequence
        self._next_sequence += 1
        self.parts[sequence] = Part(payload)
        heapq.heappush(self._queue, sequence)
        return sequence

    def next_for(self, worker: Hashable) -> int | None:
        """The first waiting part that `worker` does not have already; waits no more."""
        passed = []
        chosen = None
        while self._queue and chosen is None:
            sequence = heapq.heappop(self._queue)
            if worker in self.parts[sequence].holders:
                passed.append(sequence)
            else:
                chosen = sequence
        for sequence in passed:
            heapq.heappush(self._queue, sequence)
        if chosen is not None:
            self.parts[chosen].is_queued = False
        return chosen

    def requeue(self, sequence: int) -> None:
        """Have a part wait for another worker, before all later ones."""
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
        """The results that are next in order, and so make room for parts."""
        taken = []
        while self._next_taken in self._results:
            taken.append(self._results.pop(self._next_taken))
            self._next_taken += 1
        return taken

    def fail(self, error: OutriderError) -> None:
        """Give up: parts and results are let go."""
        self.error = self.error or error
        self.parts.clear()
        self._queue.clear()
        self._results.clear()
