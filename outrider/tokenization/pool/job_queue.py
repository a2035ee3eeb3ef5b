"""Decides which job is tokenized next, and by which of several processes. Pure.

Short chats come first, long ones leave a worker to them, and prompts that are still being typed
come last, since no request waits for them yet. Within each of these classes workers are shared
fairly between those who ask, and when too much waits, whoever has most of it loses some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from operator import attrgetter, itemgetter
from random import Random
from typing import Final, Generic, NamedTuple, TypeVar

from outrider.errors import OverloadedError
from outrider.fair_queue import FairClock, FairQueue
from outrider.tokenization.cuts import SLICE_CHARS

JobT = TypeVar("JobT", bound=Hashable)

LONG_CHARS: Final = SLICE_CHARS
"""A text from here on takes milliseconds, and more than one of them would hold up all others. A
worker takes about so much of it at a time, and then whatever is next."""
_MAX_PASSED: Final = 8
"""Short chats that may overtake a long one while a worker is free to take it."""

_MAX_CLIENTS: Final = 1024
"""Clients of one origin that are told apart; when there are more, all start anew."""


class JobClass(Enum):
    """How a job is scheduled."""

    SHORT = auto()
    LONG = auto()
    TYPEAHEAD = auto()
    """A prompt that is still being typed."""


class Requester(NamedTuple):
    """Who asks for a job. Workers are shared equally between origins that have jobs, and what an
    origin gets, between its clients."""

    origin: str = ""
    """The tenant, or where clients without one come from (`Identity.origin` at an edge)."""
    client: str = ""
    """One client, or a user of the tenant."""


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
    """Virtual time at which it starts among its origin's."""

    @property
    def flow(self) -> str:
        return self.requester.origin

    @property
    def cost(self) -> float:
        return max(1, min(self.left, LONG_CHARS))


@dataclass(slots=True)
class _OriginClock:
    """Virtual time of one origin's jobs: start-time fair queueing (see `FairQueue`) between its
    clients, with starts that are set when jobs come."""

    now: float = 0.0
    """Start of the job that was taken last."""
    finishes: dict[str, float] = field(default_factory=dict)
    """When the last job of each client finishes."""
    num_entries: int = 0
    """Jobs that wait or run."""

    def start(self, client: str, cost: float) -> float:
        """The start of a client's next job."""
        if len(self.finishes) > _MAX_CLIENTS:
            self.finishes.clear()
        start = max(self.now, self.finishes.get(client, 0.0))
        self.finishes[client] = start + cost
        return start

    def uncharge(self, client: str, start: float, cost: float) -> None:
        """A client's job was given up; if it was its last one, the next takes its place."""
        if self.finishes.get(client) == start + cost:
            self.finishes[client] = start


@dataclass(slots=True)
class _Share(Generic[JobT]):
    """What waits of chats or typed prompts, of one origin in it, or of one client of that."""

    count: int = 0
    size: int = 0
    parts: dict[str, _Share[JobT]] = field(default_factory=dict)
    """By origin or client."""
    entries: dict[_Entry[JobT], None] = field(default_factory=dict)
    """Of one client."""

    def add(self, entry: _Entry[JobT], path: Sequence[str]) -> None:
        """`path`: names of the parts that the entry is in."""
        self.count += 1
        self.size += entry.size
        if path:
            self.parts.setdefault(path[0], _Share()).add(entry, path[1:])
        else:
            self.entries[entry] = None

    def remove(self, entry: _Entry[JobT], path: Sequence[str]) -> None:
        """Undo `add`."""
        self.count -= 1
        self.size -= entry.size
        if not path:
            del self.entries[entry]
            return
        part = self.parts[path[0]]
        part.remove(entry, path[1:])
        if not part.count:
            del self.parts[path[0]]


class JobQueue(Generic[JobT]):
    """Jobs that wait for `num_workers` workers, and those in progress. Not thread-safe."""

    def __init__(self, num_workers: int, max_queued: int, max_pending_size: int) -> None:
        """At most `max_queued` chats wait while all workers are busy, of at most `max_pending_size`
        characters (or bytes) with those in progress, if there is more than one; and as many
        typeahead prompts."""
        self._num_workers = num_workers
        self._max_pending = num_workers + max_queued
        self._max_pending_size = max_pending_size
        clock = FairClock()
        self._queues: dict[JobClass, FairQueue[_Entry[JobT]]] = {
            one: FairQueue(clock) for one in JobClass
        }
        chats = _Share[JobT]()
        self._shares = {
            JobClass.SHORT: chats,
            JobClass.LONG: chats,
            JobClass.TYPEAHEAD: _Share[JobT](),
        }
        self._waiting: dict[JobT, _Entry[JobT]] = {}
        self._running: dict[JobT, _Entry[JobT]] = {}
        self._num_running: Counter[JobClass] = Counter()
        self._origins: dict[str, _OriginClock] = {}
        """Of those with jobs."""
        self._num_put = 0
        self._num_passed = 0
        """Short chats that were taken while a long one waited."""

    @property
    def num_waiting(self) -> int:
        """Chats that wait; typeahead prompts are not counted."""
        return self._shares[JobClass.SHORT].count

    def put(
        self, job: JobT, job_class: JobClass, requester: Requester, size: int
    ) -> Sequence[JobT]:
        """Add a job of so many characters (or bytes); the answer is the jobs that are given up for
        it. When too many of its class are pending, who asks for most loses the job that came last:
        of the origins, and within it of the clients, the one with the largest share of the places
        or of the size (Ghodsi et al., "Dominant resource fairness", NSDI 2011). Raises
        OverloadedError if that is the new one."""
        self._num_put += 1
        entry = _Entry(job, job_class, requester, size, self._num_put, size)
        shares = self._shares[job_class]
        running = [one for one in self._running.values() if self._shares[one.job_class] is shares]
        running_size = sum(one.size for one in running)
        self._origins.setdefault(requester.origin, _OriginClock()).num_entries += 1
        self._push(entry)
        given_up = list[JobT]()
        while (count := shares.count + len(running)) > self._max_pending or (
            count > 1 and shares.size + running_size > self._max_pending_size
        ):
            last = self._last_of_greediest(shares, requester)
            self._leave(last)
            if last is entry:
                raise OverloadedError(
                    f"{count - 1} prompts already wait for tokenization; try again",
                    retry_delay_ms=100,
                )
            given_up.append(last.job)
        return given_up

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
        self._shares[job_class].remove(entry, entry.requester)
        del self._waiting[entry.job]
        origin = self._origins[entry.requester.origin]
        origin.now = max(origin.now, entry.rank)
        self._running[entry.job] = entry
        self._num_running[job_class] += 1
        return entry.job

    def finish(self, job: JobT) -> None:
        """A worker is through with a job."""
        self._left(self._stopped(job))

    def put_back(self, job: JobT) -> None:
        """A worker has done a slice of a long job, which waits for the next one."""
        entry = self._stopped(job)
        entry.left = max(1, entry.left - LONG_CHARS)
        self._push(entry)

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

    def _last_of_greediest(self, shares: _Share[JobT], newest: Requester) -> _Entry[JobT]:
        """Of equally greedy ones it is the `newest`."""

        def share(name: str, part: _Share[JobT], own: str) -> tuple[float, bool]:
            places, size = part.count / self._max_pending, part.size / self._max_pending_size
            return max(places, size), name == own

        for own in newest:
            rows = ((share(name, part, own), part) for name, part in shares.parts.items())
            shares = max(rows, key=itemgetter(0))[1]
        return max(shares.entries, key=attrgetter("number"))

    def _push(self, entry: _Entry[JobT]) -> None:
        origin = self._origins[entry.requester.origin]
        entry.rank = origin.start(entry.requester.client, entry.cost)
        self._waiting[entry.job] = entry
        self._shares[entry.job_class].add(entry, entry.requester)
        self._queues[entry.job_class].push(entry)

    def _stopped(self, job: JobT) -> _Entry[JobT]:
        entry = self._running.pop(job)
        self._num_running[entry.job_class] -= 1
        return entry

    def _leave(self, entry: _Entry[JobT]) -> None:
        del self._waiting[entry.job]
        self._queues[entry.job_class].remove(entry)
        self._shares[entry.job_class].remove(entry, entry.requester)
        origin = self._origins[entry.requester.origin]
        origin.uncharge(entry.requester.client, entry.rank, entry.cost)
        self._left(entry)

    def _left(self, entry: _Entry[JobT]) -> None:
        origin = self._origins[entry.requester.origin]
        origin.num_entries -= 1
        if not origin.num_entries:
            del self._origins[entry.requester.origin]


def given_up() -> OverloadedError:
    """The error for a job that has lost its place."""
    return OverloadedError(
        "too many prompts wait for tokenization, and most of them are yours; send fewer at once",
        retry_delay_ms=100,
    )


def two_choices(loads: Sequence[int], rng: Random) -> int:
    """The index of the less loaded of two picked at random: near the best of all, without herding
    (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001). `loads` is not
    empty."""
    if len(loads) == 1:
        return 0
    first, second = rng.sample(range(len(loads)), 2)
    return first if loads[first] <= loads[second] else second
