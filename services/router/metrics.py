"""The router's metrics of replicas, admission and autoscaling. Those of sessions are recorded in
`relay.telemetry`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import Final

import structlog

from outrider.cost import NANOS
from outrider.model_identity import short_form
from outrider.session_types import Priority
from outrider.telemetry.metrics import Metrics
from services.router.admission.admission import Admission
from services.router.admission.routing import LiveFleetView
from services.router.autoscale.advisor import AutoscaleAdvisor, FleetKey, ScalingAdvice, fleet_usage
from services.router.fleet.registry import Registry
from services.router.relay.intake import Intake

REPLICA_STATE: Final = "outrider.router.replica_state"
"""The number of its `PeerState`, by replica and region."""
REPLICA_RTT: Final = "outrider.router.replica_rtt_ms"
"""Smoothed round trip, where it was measured."""
REPLICA_QUARANTINES: Final = "outrider.router.replica_quarantines"
REPLICA_INCONSISTENT: Final = "outrider.router.replica_inconsistent"
"""1 where sessions are opened as of another model identity than is reported, else 0."""
TRANSITIONS: Final = "outrider.router.replica_transitions"

WAITING: Final = "outrider.router.waiting_sessions"
WAIT_MS: Final = "outrider.router.wait_ms"
REFUSED: Final = "outrider.router.refused"
SPILLED: Final = "outrider.router.spilled"
TENANT_SESSIONS: Final = "outrider.router.tenant_sessions"
TENANT_TOKENS: Final = "outrider.router.tenant_tokens"
TENANT_COST: Final = "outrider.router.tenant_cost"

DESIRED: Final = "outrider.router.desired_replicas"
SERVING: Final = "outrider.router.serving_replicas"
LATE_SHARE: Final = "outrider.router.late_share"
WINDOW_REQUESTS: Final = "outrider.router.window_requests"
UTILIZATION: Final = "outrider.router.utilization"

WAIT_BOUNDARIES_MS: Final = (
    *(0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0),
    *(1000.0, 2500.0, 5000.0, 10000.0, 20000.0, 60000.0),
)
_REPLICA_INTERVAL_S: Final = 1.0
_REVIEW_INTERVAL_S: Final = 1.0

_log = structlog.get_logger()


class ReplicaMetrics:
    """Logs changes of the replicas' states at once, and updates their gauges once a second."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._flushed_at = float("-inf")
        self._inconsistent: set[str] = set()
        """Names of those that were logged as such."""

    def tick(self, registry: Registry, now: float) -> None:
        """Called often."""
        for it in registry.take_transitions():
            _log.info(
                "replica_state",
                replica=it.replica,
                before=it.before.name,
                after=it.after.name,
                why=it.why,
            )
            self._metrics.counter(TRANSITIONS).add(1, {"state": it.after.name.lower()})
        if now - self._flushed_at >= _REPLICA_INTERVAL_S:
            self._flushed_at = now
            self._flush(registry)

    def _log_inconsistent(self, registry: Registry) -> None:
        """Once for each, and once when it is over."""
        found = {it.name: it for it in registry if it.is_inconsistent}
        for name in found.keys() - self._inconsistent:
            _log.warning(
                "replica_inconsistent",
                replica=name,
                reports=short_form(found[name].model_identity),
                opens_as=short_form(found[name].opened_as),
                action="it gets no sessions but trials; restart it, or ask what answers there",
            )
        for name in self._inconsistent - found.keys():
            _log.info("replica_consistent", replica=name)
        self._inconsistent = set(found)

    def _flush(self, registry: Registry) -> None:
        self._log_inconsistent(registry)
        rows = [(it, {"replica": it.name, "region": it.region}) for it in registry]
        table = self._metrics.table
        table(REPLICA_STATE).set((it.state, labels) for it, labels in rows)
        table(REPLICA_RTT).set(
            (it.rtt.smoothed_ms, labels) for it, labels in rows if it.rtt.is_measured
        )
        table(REPLICA_QUARANTINES).set((it.health.quarantine.count, labels) for it, labels in rows)
        table(REPLICA_INCONSISTENT).set((float(it.is_inconsistent), labels) for it, labels in rows)


class AdmissionMetrics:
    """Who waits, was refused, spilled or let in, and what it costs."""

    def __init__(self, metrics: Metrics, admission: Admission, registry: Registry) -> None:
        self._metrics = metrics
        self._admission = admission
        self._registry = registry

    def tick(self) -> None:
        """Export what was counted since the last call."""
        waiting = dict.fromkeys(product(self._registry.models(), Priority), 0)
        waiting |= self._admission.num_waiting()
        self._metrics.table(WAITING).set(
            (count, {"priority": priority.name, "model": model})
            for (model, priority), count in waiting.items()
        )
        stats = self._admission.stats.take()
        waits = self._metrics.histogram(WAIT_MS, WAIT_BOUNDARIES_MS)
        for priority, model, wait_ms in stats.waits_ms:
            waits.record(wait_ms, {"priority": priority.name, "model": model})
        self._count(REFUSED, stats.refused, ("priority", "cause", "model"))
        self._count(SPILLED, stats.spilled, ("home", "region", "cause"))
        self._count(TENANT_SESSIONS, stats.sessions, ("tenant", "outcome"))
        self._count(TENANT_TOKENS, stats.tokens, ("tenant",))
        costs = {labels: nanos / NANOS for labels, nanos in stats.costs_nanos.items()}
        self._count(TENANT_COST, costs, ("tenant", "model"))

    def _count(
        self, name: str, counts: Mapping[tuple[str, ...], float], labels: tuple[str, ...]
    ) -> None:
        counter = self._metrics.counter(name)
        for values, count in counts.items():
            counter.add(count, dict(zip(labels, values, strict=True)))


class AutoscaleMetrics:
    """How many replicas each region should have, reviewed once a second."""

    def __init__(
        self,
        metrics: Metrics,
        registry: Registry,
        intake: Intake,
        fleet_view: LiveFleetView,
        autoscale: AutoscaleAdvisor,
        slo_ttft_ms: float,
    ) -> None:
        self._metrics = metrics
        self._registry = registry
        self._intake = intake
        self._fleet_view = fleet_view
        self._autoscale = autoscale
        self._slo_ttft_ms = slo_ttft_ms
        self._next_review_at = 0.0

    def tick(self, now: float) -> None:
        """Called often."""
        if now < self._next_review_at:
            return
        self._next_review_at = now + _REVIEW_INTERVAL_S
        waiting = Counter(
            FleetKey(self._fleet_view.home(request), request.model)
            for request in self._intake.waiting()
        )
        found = fleet_usage(self._registry, waiting, self._slo_ttft_ms)
        self._export(self._autoscale.advise(found, now))

    def _export(self, advice: dict[FleetKey, ScalingAdvice]) -> None:
        rows = [({"region": p.region, "model": p.model}, found) for p, found in advice.items()]
        table = self._metrics.table
        table(DESIRED).set((found.desired_replicas, labels) for labels, found in rows)
        table(SERVING).set((found.num_replicas, labels) for labels, found in rows)
        table(LATE_SHARE).set((found.late_share, labels) for labels, found in rows)
        table(WINDOW_REQUESTS).set((found.num_requests, labels) for labels, found in rows)
        table(UTILIZATION).set((found.utilization, labels) for labels, found in rows)
