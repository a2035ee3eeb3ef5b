"""Time slicing: work for many chats, a bounded part of it in each turn of the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

SLICE_S: Final = 0.001
"""Time that one turn of the loop may take for queued work. Beginning a chat takes some 1 ms,
continuing a draft 0.3 ms."""

Work: TypeAlias = Callable[[], None]


class TimeSlicer:
    """One datagram may hold the requests of fifty chats, and the timers of all of them may run out
    together. Their work is done here in the order in which it came: in each turn of the loop as
    much as fits into a slice, and at least one piece."""

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._slice_s = slice_s
        self._queue: deque[Work] = deque()
        self._used_s = 0.0
        """Seconds used of this turn's slice."""
        self._is_scheduled = False

    def __len__(self) -> int:
        """Pieces of work that wait."""
        return len(self._queue)

    def submit(self, work: Work) -> None:
        """Run it now, if nothing waits and this turn's slice has time left; otherwise queue it."""
        if self._queue or self._is_used_up:
            self._queue.append(work)
            return
        self._schedule()
        self._run(work)

    def defer(self, work: Work) -> None:
        """Queue it for a later turn."""
        self._schedule()
        self._queue.append(work)

    @property
    def _is_used_up(self) -> bool:
        return self._used_s > 0.0 and self._used_s >= self._slice_s

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        self._used_s = 0.0
        if self._queue:
            self._schedule()  # before any work can raise: the loop reports it, the rest still runs
        while self._queue and not self._is_used_up:
            self._run(self._queue.popleft())

    def _run(self, work: Work) -> None:
        began_at = time.perf_counter()
        try:
            work()
        finally:
            self._used_s += time.perf_counter() - began_at
