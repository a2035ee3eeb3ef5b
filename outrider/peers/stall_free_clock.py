"""A monotonic clock that leaves out the time during which this process stalled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from outrider.peers.stalls import StallDetector, StallPolicy
from outrider.wake_ups import next_wake_up

log = structlog.get_logger()

_LEAST_WAIT_S: Final = 0.01


class StallFreeClock:
    """Seconds on the scale of `clock`, without this process's stalls (see stalls.py).

    Between `start` and `stop` it is observed by a timer of the running loop; before and after it is
    `clock` less what was lost till then.
    """

    def __init__(
        self,
        policy: StallPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy or StallPolicy()
        self._clock = clock
        self._detector: StallDetector | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ticked = asyncio.Event()
        self._lost_s = 0.0

    def __call__(self) -> float:
        """Now."""
        now = self._clock() - self._lost_s
        return self._detector.observe(now) if self._detector is not None else now

    @property
    def stalled_s(self) -> float:
        """Total time left out so far."""
        return self._lost_s + (self._detector.stalled_s if self._detector is not None else 0.0)

    @property
    def stalled_recently(self) -> bool:
        """Whether this process stalled a moment ago: what breaks now is not a peer's failure."""
        self()
        return self._detector is not None and self._detector.stalled_recently

    def start(self) -> None:
        """Watch the running loop."""
        self._detector = StallDetector(self._clock() - self._lost_s, self._policy)
        self._tick(asyncio.get_running_loop())

    async def next_tick(self) -> None:
        """Return at the next tick of the timer of a started clock. Work that depends only on time
        can use it instead of a timer and wake-ups of its own."""
        await self._ticked.wait()

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None and self._detector is not None:
            self._timer.cancel()
            self._lost_s += self._detector.stalled_s
            self._timer = self._detector = None

    @asynccontextmanager
    async def timeout(self, limit_s: float) -> AsyncIterator[None]:
        """Like asyncio.timeout, in seconds of this clock: an answer that came during a stall is
        still read."""
        loop = asyncio.get_running_loop()
        until = self() + limit_s
        timer: asyncio.TimerHandle | None = None

        def check(scope: asyncio.Timeout) -> None:
            nonlocal timer
            left_s = until - self()
            if left_s <= 0.0:
                scope.reschedule(loop.time())
            else:
                timer = loop.call_later(max(left_s, _LEAST_WAIT_S), check, scope)

        async with asyncio.timeout(None) as scope:
            check(scope)
            try:
                yield
            finally:
                if timer is not None:
                    timer.cancel()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        before_s = self.stalled_s
        if self._detector is not None:
            self._detector.tick(self._clock() - self._lost_s)
        if (stalled_s := self.stalled_s - before_s) >= self._policy.stop_s:
            log.warning("process_stalled", seconds=round(stalled_s, 1))
        self._ticked.set()
        self._ticked = asyncio.Event()
        due = next_wake_up(loop.time(), self._policy.interval_s)
        self._timer = loop.call_at(due, self._tick, loop)
