"""What the router tells operators of its replicas."""

from __future__ import annotations

from typing import Final

import structlog

from outrider.telemetry.metrics import Metrics
from services.router.fleet.registry import Registry

REPLICA_STATE: Final = "outrider.router.replica_state"
"""The number of its `PeerState`, by replica and region."""
REPLICA_RTT: Final = "outrider.router.replica_rtt_ms"
"""Smoothed round trip, where it was measured."""
REPLICA_QUARANTINES: Final = "outrider.router.replica_quarantines"
TRANSITIONS: Final = "outrider.router.replica_transitions"
_INTERVAL_S: Final = 1.0

log = structlog.get_logger()


class FleetMetrics:
    """Logs what changes as it does, and brings the gauges up to date once a second."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._flushed_at = float("-inf")

    def tick(self, registry: Registry, now: float) -> None:
        """Called often."""
        for it in registry.take_transitions():
            log.info(
                "replica_state",
                replica=it.replica,
                before=it.before.name,
                after=it.after.name,
                why=it.why,
            )
            self._metrics.counter(TRANSITIONS).add(1, {"state": it.after.name.lower()})
        if now - self._flushed_at >= _INTERVAL_S:
            self._flushed_at = now
            self._flush(registry)

    def _flush(self, registry: Registry) -> None:
        rows = [(it, {"replica": it.name, "region": it.region}) for it in registry]
        table = self._metrics.table
        table(REPLICA_STATE).set((it.state, labels) for it, labels in rows)
        table(REPLICA_RTT).set(
            (it.rtt.smoothed_ms, labels) for it, labels in rows if it.rtt.is_measured
        )
        table(REPLICA_QUARANTINES).set((it.health.quarantine.count, labels) for it, labels in rows)
