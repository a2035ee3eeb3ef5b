"""One timer of the event loop for the times of many chats: calls that are due together run
together."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Final, TypeAlias

_GRANULARITY_S: Final = 0.001
"""Granularity of the event loop's timers: anything due this soon is called together with what is
due now."""
_MAX_STALE: Final = 64
"""Cancelled calls that may be kept in any case; beyond this number, no more of them than of waiting
calls."""

Callback: TypeAlias = Callable[[], None]


class Call:
    """A call that is waited for."""

    __slots__ = ("_timers", "callback")

    def __init__(self, timers: SharedTimer, callback: Callback) -> None:
        self._timers = timers
        self.callback: Callback | None = callback
        """None: it was cancelled, or made."""

    def cancel(self) -> None:
        """Do without it; nothing happens if it was made."""
        if self.callback is not None:
            self.callback = None
            self._timers.cancelled()


class SharedTimer:
    """Makes calls at their times, the earliest first."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[float, int, Call]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at = 0.0
        self._num_stale = 0
        """Cancelled calls in the heap."""

    def __len__(self) -> int:
        """Calls that are waited for."""
        return len(self._heap) - self._num_stale

    def call_at(self, at: float, callback: Callback) -> Call:
        """`callback` is called at a time of the loop's clock, or up to a millisecond sooner; what
        it raises is the loop's to report."""
        call = Call(self, callback)
        heapq.heappush(self._heap, (at, next(self._numbers), call))
        if self._timer is None or at < self._armed_at:
            self._arm(at)
        return call

    def cancelled(self) -> None:
        """One of the calls was cancelled."""
        self._num_stale += 1
        if self._num_stale > max(_MAX_STALE, len(self)):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._num_stale = 0
        if not len(self) and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = at
        self._timer = self._loop.call_at(at, self._due)

    def _due(self) -> None:
        self._timer = None
        until = self._loop.time() + _GRANULARITY_S
        try:
            while self._heap and self._heap[0][0] <= until:
                _, _, call = heapq.heappop(self._heap)
                callback, call.callback = call.callback, None
                if callback is None:
                    self._num_stale -= 1
                else:
                    callback()
        finally:
            self._watch()

    def _watch(self) -> None:
        """Arm the timer for the earliest call, unless one of those made has done so."""
        if self._heap and (self._timer is None or self._heap[0][0] < self._armed_at):
            self._arm(self._heap[0][0])
