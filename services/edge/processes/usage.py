"""Usage of an edge's limits by many keys, counted by all of its processes in one shared memory.

A key has a slot in one of the sets that its hash selects (as in a set-associative cache); if all
are taken, the longest unused one that holds nothing is replaced. Each process counts what it holds
in a column of its own, so that the parent can release what a killed process held. Token buckets are
common to all; their clock is CLOCK_MONOTONIC, which all processes share.

An operation takes some microseconds under a lock of the kernel (fcntl(2)), which is released when
its holder dies. It waits only a moment for the lock, since a process may be stopped while it holds
it. After that an operation continues without it, and two that do so at once may both take the last
room.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

from outrider.errors import OverloadedError
from services.edge.limits.quotas import RateLimit

NUM_COUNTS: Final = 3
"""Number of kinds of things that a key can hold."""
NUM_BUCKETS: Final = 4
"""Rates of a key."""
_WAYS: Final = 16
NUM_SLOTS: Final = 65_536
"""Keys that are remembered."""
_KEY_BYTES: Final = 16
_LOCK_TRIES: Final = 40
_LOCK_PAUSE_S: Final = 5e-5
_BUSY_RETRY_MS: Final = 1000


def size_bytes(num_processes: int, num_slots: int = NUM_SLOTS) -> int:
    """Size of the memory, which the system allocates page by page as it is used."""
    doubles = 8 * (1 + 2 * NUM_BUCKETS)
    return num_slots * (_KEY_BYTES + doubles + 4 * NUM_COUNTS * num_processes)


def make_memory(num_processes: int, num_slots: int = NUM_SLOTS) -> int:
    """The descriptor of empty memory for so many processes; the caller closes it."""
    descriptor = os.memfd_create("outrider-usage")
    os.truncate(descriptor, size_bytes(num_processes, num_slots))
    return descriptor


class SharedUsage:
    """The view of one process."""

    def __init__(
        self, descriptor: int, process: int, num_processes: int, num_slots: int = NUM_SLOTS
    ) -> None:
        """Maps memory made by `make_memory` with the same numbers."""
        self._lock = descriptor
        self._num_sets = num_slots // _WAYS
        memory = mmap.mmap(descriptor, size_bytes(num_processes, num_slots))
        self._memory = memory
        view = memoryview(memory)
        at = num_slots * _KEY_BYTES
        self._used_at = view[at : at + 8 * num_slots].cast("d")
        at += 8 * num_slots
        self._levels = view[at : at + 8 * num_slots * NUM_BUCKETS].cast("d")
        at += 8 * num_slots * NUM_BUCKETS
        self._filled_at = view[at : at + 8 * num_slots * NUM_BUCKETS].cast("d")
        at += 8 * num_slots * NUM_BUCKETS
        column = 4 * num_slots * NUM_COUNTS
        self._held = [
            view[at + number * column : at + (number + 1) * column].cast("I")
            for number in range(num_processes)
        ]
        self._own = self._held[process]

    def hold(self, key: bytes, count: int, limit: int | None, now: float) -> bool:
        """Count one more for a key, if that is at most `limit` (None: no limit); returns whether it
        was. Raises OverloadedError if there is no room for the key."""
        with self._locked():
            place = self._slot(key, now) * NUM_COUNTS + count
            if limit is not None and self._total(place) >= limit:
                return False
            self._own[place] += 1
            return True

    def release(self, key: bytes, count: int) -> None:
        """Count one less of what this process holds."""
        with self._locked():
            slot = self._find(key)
            assert slot is not None, "what holds something is not forgotten"
            self._own[slot * NUM_COUNTS + count] -= 1

    def set_held(self, key: bytes, count: int, held: int, limit: int | None, now: float) -> bool:
        """This process holds so many of a key from now on, if all hold `limit` at most."""
        with self._locked():
            place = self._slot(key, now) * NUM_COUNTS + count
            if limit is not None and self._total(place) - self._own[place] + held > limit:
                return False
            self._own[place] = held
            return True

    def held(self, key: bytes, count: int) -> int:
        """How many all processes hold."""
        slot = self._find(key)
        return 0 if slot is None else self._total(slot * NUM_COUNTS + count)

    def take(self, key: bytes, bucket: int, limit: RateLimit, amount: float, now: float) -> float:
        """Use so much of a rate. In how many seconds there will be so much, or a whole burst if
        that is less; 0: it was there, and is used."""
        with self._locked():
            place = self._slot(key, now) * NUM_BUCKETS + bucket
            level = self._fill(place, limit, now)
            if amount <= level:
                self._levels[place] = level - amount
                return 0.0
            return max(1e-3, (min(amount, limit.burst) - level) / limit.per_s)

    def charge(self, key: bytes, bucket: int, limit: RateLimit, amount: float, now: float) -> None:
        """Charge an amount that can no longer be refused."""
        with self._locked():
            place = self._slot(key, now) * NUM_BUCKETS + bucket
            self._levels[place] = self._fill(place, limit, now) - amount

    def level(self, key: bytes, bucket: int, limit: RateLimit, now: float) -> float:
        """Amount left."""
        with self._locked():
            slot = self._find(key)
            if slot is None:
                return limit.burst
            return self._fill(slot * NUM_BUCKETS + bucket, limit, now)

    def clear(self, process: int) -> None:
        """A process is gone, and holds nothing any more."""
        with self._locked():
            column = self._held[process].cast("B")
            column[:] = bytes(len(column))

    def _fill(self, place: int, limit: RateLimit, now: float) -> float:
        """The level of a bucket now."""
        filled_at = self._filled_at[place]
        level = limit.burst
        if filled_at:
            passed_s = max(0.0, now - filled_at)
            level = min(limit.burst, self._levels[place] + passed_s * limit.per_s)
        self._levels[place] = level
        self._filled_at[place] = max(filled_at, now)
        return level

    def _total(self, place: int) -> int:
        return sum(column[place] for column in self._held)

    def _find(self, key: bytes) -> int | None:
        first = int.from_bytes(key[:8], "little") % self._num_sets * _WAYS
        at, end = first * _KEY_BYTES, (first + _WAYS) * _KEY_BYTES
        while (at := self._memory.find(key, at, end)) >= 0:
            if at % _KEY_BYTES == 0:
                return at // _KEY_BYTES
            at += 1
        return None

    def _slot(self, key: bytes, now: float) -> int:
        """Slot of a key that is used now. Raises OverloadedError."""
        slot = self._find(key)
        if slot is None:
            first = int.from_bytes(key[:8], "little") % self._num_sets * _WAYS
            slot = min(range(first, first + _WAYS), key=self._given_up)
            if self._given_up(slot)[0]:
                raise OverloadedError(
                    "too many other clients are being served; try again",
                    retry_delay_ms=_BUSY_RETRY_MS,
                )
            self._memory[slot * _KEY_BYTES : (slot + 1) * _KEY_BYTES] = key
            for bucket in range(NUM_BUCKETS):
                self._filled_at[slot * NUM_BUCKETS + bucket] = 0.0
        self._used_at[slot] = now
        return slot

    def _given_up(self, slot: int) -> tuple[bool, float]:
        """The least one is given up: it holds nothing, and was not used for the longest time."""
        places = range(slot * NUM_COUNTS, (slot + 1) * NUM_COUNTS)
        return any(self._total(place) for place in places), self._used_at[slot]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        is_locked = self._take_lock()
        try:
            yield
        finally:
            if is_locked:
                fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def _take_lock(self) -> bool:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(_LOCK_PAUSE_S)
            else:
                return True
        return False


def named(secret: bytes, kind: str, key: str | bytes) -> bytes:
    """The key of something in the memory; without `secret` no one can choose its set."""
    text = key.encode() if isinstance(key, str) else key
    return blake2b(kind.encode() + b"\0" + text, key=secret, digest_size=_KEY_BYTES).digest()
