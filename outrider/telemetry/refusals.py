"""One log line per interval for what is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from outrider.telemetry.log_aggregation import EventAggregator

log = structlog.get_logger()


class RefusalLog:
    """Of one kind of thing: streams, sessions, what clients ask for. On the running loop."""

    def __init__(
        self,
        what: str,
        *,
        interval_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._clock = clock
        self._aggregator = EventAggregator(interval_s)
        self._details: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, reason: str, **details: str) -> None:
        """One was refused for this reason; of `details` those of the last one are said."""
        self._aggregator.add(reason)
        self._details = details or self._details
        if self._timer is None:
            self._say()

    def close(self) -> None:
        """Nothing is said any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _say(self) -> None:
        """What is due; then again when more may be, until nothing was."""
        now, self._timer = self._clock(), None
        counts = self._aggregator.due(now)
        if counts is not None:
            details, self._details = self._details, {}
            log.warning("refused", what=self._what, num_by_reason=counts, **details)
        wait_s = self._aggregator.next_at() - now
        if wait_s > 0.0:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._say)
