"""Who is tokenized next: a pure queue with a place for every kind of text.

Short chats come first, long ones leave a worker to them, text that is still being typed comes
last: its prompt is not asked yet.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Final, Generic, TypeVar

from outrider.errors import OverloadedError

JobT = TypeVar("JobT")

LONG_CHARS: Final = 32_768
"""A text from here on takes milliseconds, and more than one of them would hold up all others."""
_TURNS: Final = 8
"""A long chat waits for so many short ones at most, once a worker may take it."""


class Kind(Enum):
    """How a job stands in line."""

    SHORT = auto()
    LONG = auto()
    TYPED = auto()


_CHATS: Final = (Kind.SHORT, Kind.LONG)


class Line(Generic[JobT]):
    """Jobs that wait for `num_workers` workers, and those they are at. Not thread-safe."""

    def __init__(self, num_workers: int, max_queued: int) -> None:
        """At most `max_queued` chats wait while all workers are busy, and as many typed texts."""
        self._num_workers = num_workers
        self._max_pending = num_workers + max_queued
        self._queues: dict[Kind, deque[JobT]] = {kind: deque() for kind in Kind}
        self._running: dict[Kind, int] = dict.fromkeys(Kind, 0)
        self._num_passed = 0
        """Short chats that were taken while a long one waited."""

    @property
    def num_waiting(self) -> int:
        """Chats that wait; typed texts are not counted."""
        return sum(len(self._queues[kind]) for kind in _CHATS)

    def enter(self, job: JobT, kind: Kind) -> None:
        """Wait. Raises OverloadedError when too many of its kind are pending."""
        kinds = _CHATS if kind in _CHATS else (kind,)
        num_pending = sum(len(self._queues[k]) + self._running[k] for k in kinds)
        if num_pending >= self._max_pending:
            raise OverloadedError(
                f"{num_pending} prompts wait for tokenization; try again", retry_delay_ms=100
            )
        self._queues[kind].append(job)

    def take(self) -> tuple[JobT, Kind] | None:
        """The next job for a free worker; None if there is none now."""
        kind = self._next_kind()
        if kind is None:
            return None
        self._num_passed = self._num_passed + 1 if kind is Kind.SHORT else 0
        self._running[kind] += 1
        return self._queues[kind].popleft(), kind

    def _next_kind(self) -> Kind | None:
        has = {kind: bool(self._queues[kind]) for kind in Kind}
        is_free = self._running[Kind.LONG] + self._running[Kind.TYPED] < max(
            1, self._num_workers - 1
        )
        if has[Kind.LONG] and is_free and (not has[Kind.SHORT] or self._num_passed >= _TURNS):
            return Kind.LONG
        if has[Kind.SHORT]:
            return Kind.SHORT
        return Kind.TYPED if has[Kind.TYPED] and is_free and not has[Kind.LONG] else None

    def leave(self, kind: Kind) -> None:
        """A worker is through with a job of that kind."""
        self._running[kind] -= 1

    def remove(self, job: JobT, kind: Kind) -> bool:
        """Give up a job that waits; False if a worker has it, or had it."""
        try:
            self._queues[kind].remove(job)
        except ValueError:
            return False
        return True

    def clear(self) -> None:
        """Give up everything that waits."""
        for queue in self._queues.values():
            queue.clear()
