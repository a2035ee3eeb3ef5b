"""Metrics and log lines of an edge's routers."""

from __future__ import annotations

from typing import Final

import structlog

from outrider.telemetry.metrics import Metrics
from services.edge.upstream.table import RouterTable, RouterTransition

ROUTERS: Final = "outrider.edge.routers"
ROUTER_STATE: Final = "outrider.edge.router_state"
"""The number of its `PeerState`, by router and region."""
ROUTER_RTT: Final = "outrider.edge.router_rtt_ms"
ROUTER_QUARANTINES: Final = "outrider.edge.router_quarantines"

log = structlog.get_logger()


class RouterMetrics:
    """Logs transitions, and keeps the gauges."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def tick(self, table: RouterTable, transitions: list[RouterTransition]) -> None:
        """Called every 100 ms."""
        for it in transitions:
            log.info(
                "router_state",
                router=it.router,
                before=it.before.name,
                after=it.after.name,
                why=it.why,
            )
        for state, count in table.count().items():
            self._metrics.gauge(f"{ROUTERS}.{state.name.lower()}").set(count)
        rows = [(router, {"router": router.address, "region": router.region}) for router in table]
        self._metrics.table(ROUTER_STATE).set((router.state, labels) for router, labels in rows)
        self._metrics.table(ROUTER_RTT).set(
            (router.rtt.smoothed_ms, labels) for router, labels in rows if router.rtt.is_measured
        )
        self._metrics.table(ROUTER_QUARANTINES).set(
            (router.health.quarantine.count, labels) for router, labels in rows
        )
