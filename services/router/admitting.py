"""Admission and autoscale advisor of one router, built, and their figures exported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from outrider.cost import NANOS
from outrider.telemetry.metrics import Metrics
from services.router.admission.admission import Admission
from services.router.autoscale.advisor import AutoscaleAdvisor, FleetKey, ScalingAdvice, fleet_usage
from services.router.config import RouterConfig
from services.router.fleet.registry import Registry
from services.router.relay.dispatch import Dispatch
from services.router.relay.entry.entry import Entry
from services.router.relay.entry.scout import FleetScout
from services.router.relay.sessions import SessionTable
from services.router.relay.switch import Up

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

REVIEW_S: Final = 1.0
"""Time between two reviews of the autoscale advisor."""

WAIT_BOUNDARIES_MS: Final = (
    *(0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0),
    *(1000.0, 2500.0, 5000.0, 10000.0, 20000.0, 60000.0),
)


class Admitting:
    """The parts that let sessions in, and what they tell operators."""

    def __init__(
        self,
        config: RouterConfig,
        table: SessionTable[Up],
        dispatch: Dispatch,
        registry: Registry,
        metrics: Metrics,
    ) -> None:
        self.admission = Admission(
            config.admission, config.tenants, config.lengths, config.price_table()
        )
        self.scout = FleetScout(dispatch.decide, config.region, config.return_s)
        self.autoscale = AutoscaleAdvisor(config.autoscale)
        self.entry = Entry(table, dispatch, registry, self.admission, self.scout, self.autoscale)
        self._slo_ttft_ms = config.autoscale.slo_ttft_ms
        self._registry = registry
        self._metrics = metrics
        self._review_at = 0.0

    def tick(self, now: float) -> None:
        """Bring the figures up to date."""
        self._export_admission()
        if now >= self._review_at:
            self._review_at = now + REVIEW_S
            self._export_advice(self._advised(now))

    def _advised(self, now: float) -> dict[FleetKey, ScalingAdvice]:
        waiting = Counter(
            FleetKey(self.scout.home(request), request.model) for request in self.entry.waiting()
        )
        found = fleet_usage(self._registry, waiting, self._slo_ttft_ms)
        return self.autoscale.advise(found, now)

    def _export_advice(self, figures: dict[FleetKey, ScalingAdvice]) -> None:
        rows = [({"region": p.region, "model": p.model}, found) for p, found in figures.items()]
        table = self._metrics.table
        table(DESIRED).set((found.desired_replicas, labels) for labels, found in rows)
        table(SERVING).set((found.num_replicas, labels) for labels, found in rows)
        table(LATE_SHARE).set((found.late_share, labels) for labels, found in rows)
        table(WINDOW_REQUESTS).set((found.num_requests, labels) for labels, found in rows)
        table(UTILIZATION).set((found.utilization, labels) for labels, found in rows)

    def _export_admission(self) -> None:
        waiting = self.admission.num_waiting()
        self._metrics.table(WAITING).set(
            (count, {"priority": priority.name}) for priority, count in waiting.items()
        )
        stats = self.admission.stats.take()
        waits = self._metrics.histogram(WAIT_MS, WAIT_BOUNDARIES_MS)
        for priority, wait_ms in stats.waits_ms:
            waits.record(wait_ms, {"priority": priority.name})
        self._count(REFUSED, stats.refused, ("priority", "cause"))
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
