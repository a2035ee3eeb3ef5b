"""One log line per interval for refused requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from outrider.telemetry.log_aggregation import EventAggregator

log = structlog.get_logger()


class RefusalLog:
    """Logs refusals of one kind (streams, sessions, clients' requests). On the running loop."""

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
        """Count one refusal; a line has the `details` of the last one."""
        self._aggregator.add(reason)
        self._details = details or self._details
        if self._timer is None:
            self._log_due()

    def close(self) -> None:
        """Log no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _log_due(self) -> None:
        """Log what is due, and repeat after each interval until nothing was."""
        now = self._clock()
        self._timer = None
        counts = self._aggregator.due(now)
        if counts is not None:
            details, self._details = self._details, {}
            log.warning("refused", what=self._what, num_by_reason=counts, **details)
        wait_s = self._aggregator.next_at() - now
        if wait_s > 0.0:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._log_due)
