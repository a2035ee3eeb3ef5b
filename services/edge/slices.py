"""Work for many chats, a slice of it in each turn of the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

SLICE_S: Final = 0.001
"""Others have their turn after so long: to begin a chat takes some 1 ms, to draft on 0.3."""

Work = Callable[[], None]


class Slices:
    """One datagram may hold the requests of fifty chats, and the timers of all of them may run out
    together. What they do then is done here, in the order in which it came: as much as fits into a
    slice, and at least one piece of it, in a turn."""

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._slice_s = slice_s
        self._waiting: deque[Work] = deque()
        self._used_s = 0.0
        """Of this turn's slice."""
        self._is_scheduled = False

    def __len__(self) -> int:
        """Pieces that wait for their turn."""
        return len(self._waiting)

    def do(self, work: Work) -> None:
        """Now, if nothing waits and this turn has time left; otherwise when it is its turn."""
        if self._waiting or self._is_used_up:
            self._waiting.append(work)
            return
        self._schedule()
        self._run(work)

    def later(self, work: Work) -> None:
        """In its turn, but not in this one."""
        self._schedule()
        self._waiting.append(work)

    @property
    def _is_used_up(self) -> bool:
        return self._used_s > 0.0 and self._used_s >= self._slice_s

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_scheduled, self._used_s = False, 0.0
        if self._waiting:
            self._schedule()  # before anything can fail: the loop reports it, and the others go on
        while self._waiting and not self._is_used_up:
            self._run(self._waiting.popleft())

    def _run(self, work: Work) -> None:
        began_at = time.perf_counter()
        try:
            work()
        finally:
            self._used_s += time.perf_counter() - began_at
