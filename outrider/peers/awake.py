"""A clock for judging peers by, which stands still while this process does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from outrider.peers.lateness import Lateness, LatenessPolicy

log = structlog.get_logger()

_LEAST_WAIT_S: Final = 0.01


class AwakeClock:
    """Seconds for which this process was awake, on the scale of `clock` (see lateness.py).

    Between `start` and `stop` it is observed by a timer of the running loop; before and after it is
    `clock` less what was lost till then.
    """

    def __init__(
        self,
        policy: LatenessPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy or LatenessPolicy()
        self._clock = clock
        self._lateness: Lateness | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lost_s = 0.0

    def __call__(self) -> float:
        """Now."""
        now = self._clock() - self._lost_s
        return self._lateness.observe(now) if self._lateness is not None else now

    @property
    def late_s(self) -> float:
        """All of the time that is not on this clock."""
        return self._lost_s + (self._lateness.late_s if self._lateness is not None else 0.0)

    @property
    def was_late(self) -> bool:
        """Whether this process was late a moment ago: what breaks now did not break by a peer's
        fault."""
        self()
        return self._lateness is not None and self._lateness.was_late

    def start(self) -> None:
        """Watch the running loop."""
        self._lateness = Lateness(self._clock() - self._lost_s, self._policy)
        self._tick(asyncio.get_running_loop())

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None and self._lateness is not None:
            self._timer.cancel()
            self._lost_s += self._lateness.late_s
            self._timer = self._lateness = None

    @asynccontextmanager
    async def timeout(self, limit_s: float) -> AsyncIterator[None]:
        """As asyncio.timeout, in seconds of this clock: an answer that came while this process was
        not awake is still read."""
        loop, until = asyncio.get_running_loop(), self() + limit_s
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
        before_s = self.late_s
        self()
        if (late_s := self.late_s - before_s) >= self._policy.stop_s:
            log.warning("this process stood still", seconds=round(late_s, 1))
        self._timer = loop.call_later(self._policy.interval_s, self._tick, loop)
