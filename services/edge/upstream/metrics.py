"""Metrics and log lines of an edge's routers."""

from __future__ import annotations

from typing import Final

import structlog

from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics, state_rows
from services.edge.upstream.table import RouterTable, RouterTransition

ROUTERS: Final = Family("outrider_edge_routers", "Routers, by state.")
ROUTER_STATE: Final = Family(
    "outrider_edge_router_state",
    "1 for the state that a router is in, 0 for the others.",
)
ROUTER_RTT: Final = Family(
    "outrider_edge_router_rtt_seconds",
    "Smoothed round trip to a router, where it was measured.",
)
ROUTER_QUARANTINES: Final = Family(
    "outrider_edge_router_quarantines",
    "How often a router was put into quarantine.",
)

_TICKS_PER_UPDATE: Final = 10

log = structlog.get_logger()


class RouterMetrics:
    """Logs transitions, and keeps the gauges."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._ticks_left = 0
        """Until the gauges are brought up to date though no state has changed."""

    def tick(self, table: RouterTable, transitions: list[RouterTransition]) -> None:
        """Called every 100 ms."""
        self._ticks_left -= 1
        if self._ticks_left > 0 and not transitions:
            return
        self._ticks_left = _TICKS_PER_UPDATE
        for it in transitions:
            tell = log.warning if it.after.is_trouble else log.info
            tell(
                "router_state",
                router=it.router,
                before=it.before.name,
                after=it.after.name,
                why=it.why,
            )
        self._metrics.table(ROUTERS).set(
            (count, {"state": state.name.lower()}) for state, count in table.count().items()
        )
        rows = [(router, {"router": router.address, "region": router.region}) for router in table]
        self._metrics.table(ROUTER_STATE).set(
            row for router, labels in rows for row in state_rows(router.state, labels)
        )
        self._metrics.table(ROUTER_RTT).set(
            (router.rtt.smoothed_ms / 1e3, labels)
            for router, labels in rows
            if router.rtt.is_measured
        )
        self._metrics.table(ROUTER_QUARANTINES).set(
            (router.health.quarantine.count, labels) for router, labels in rows
        )
