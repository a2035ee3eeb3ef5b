"""Assigns shards to workers, and reassigns those of a worker that dies. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from outrider.bulk.plan.shards import Shard

SLOTS: Final = 2
"""Shards a worker holds: one in progress, and one that is ready when it is done. Near the end of a
run a worker gets one at a time, so that none is left queued at a busy worker while others idle."""
MAX_DEATHS: Final = 3
"""Workers that may die at one shard before it is given up."""


class Assignments:
    """The shards of a run, in order."""

    def __init__(self, shards: Iterable[Shard], num_workers: int) -> None:
        self._waiting = deque(shards)
        self._num_workers = num_workers
        self._held: dict[int, deque[Shard]] = {}
        self._deaths: Counter[int] = Counter()

    @property
    def is_over(self) -> bool:
        """Whether no shard waits and no worker has one."""
        return not self._waiting and not any(self._held.values())

    @property
    def has_waiting(self) -> bool:
        """Whether a shard waits for a worker."""
        return bool(self._waiting)

    def take(self, worker: int) -> Shard | None:
        """The next shard for a worker; None if it has enough or none is left."""
        held = self._held.setdefault(worker, deque())
        least = SLOTS * self._num_workers if held else 1
        if len(held) >= SLOTS or len(self._waiting) < least:
            return None
        shard = self._waiting.popleft()
        held.append(shard)
        return shard

    def done(self, worker: int) -> Shard:
        """The worker finished its oldest shard."""
        return self._held[worker].popleft()

    def died(self, worker: int) -> Shard | None:
        """Return the worker's shards to the front of the queue. Returns its oldest one if that is
        given up because MAX_DEATHS workers died at it."""
        held = self._held.pop(worker, deque())
        failed = None
        if held:
            number = held[0].number
            self._deaths[number] += 1
            if self._deaths[number] >= MAX_DEATHS:
                failed = held.popleft()
        self._waiting.extendleft(reversed(held))
        return failed
