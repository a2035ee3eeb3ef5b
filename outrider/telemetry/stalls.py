"""How late an event loop is: what holds it up holds up every chat of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from outrider.telemetry import names

INTERVAL_S: Final = 0.02
STALL_MS: Final = 5.0
"""From here on a delay is counted as a stall, with what went on meanwhile."""
OTHER: Final = "other"

Cause = Callable[[float], str]
"""What is known to have gone on since that time of the loop's clock; OTHER: nothing known."""


class StallMonitor:
    """Asks the loop to call back, again and again, and measures how late it does."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        cause: Cause | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._registry = registry
        self._cause = cause or (lambda since: OTHER)
        self._interval_s = interval_s
        self._lag_ms = Histogram(
            names.LOOP_LAG_MS,
            "how late the event loop called back",
            buckets=names.LOOP_LAG_MS_BOUNDARIES,
            registry=registry,
        )
        self._stalls = Counter(
            names.LOOP_STALLS,
            f"delays of {STALL_MS:g} ms or more, and what went on meanwhile",
            ["during"],
            registry=registry,
        )
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch the running loop."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._interval_s
        self._timer = loop.call_at(due, self._called, loop, due)

    def stop(self) -> None:
        """Stop watching, and take the figures out of the registry."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._registry.unregister(self._lag_ms)
            self._registry.unregister(self._stalls)

    def _called(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.late(due - self._interval_s, (loop.time() - due) * 1e3)
        self.start()

    def late(self, since: float, lag_ms: float) -> None:
        """The loop was `lag_ms` late; it was on time at `since`."""
        self._lag_ms.observe(max(0.0, lag_ms))
        if lag_ms >= STALL_MS:
            self._stalls.labels(self._cause(since)).inc()
