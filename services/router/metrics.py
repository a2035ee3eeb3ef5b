"""The router's metrics of replicas, admission and autoscaling. `relay.telemetry` records those of
sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import product
from typing import Final

import structlog

from outrider.cost import NANOS
from outrider.model_identity import short_form
from outrider.peers.health import PeerState
from outrider.session.types import Priority
from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics, state_rows
from services.router.admission.admission import Admission
from services.router.admission.routing import LiveFleetView
from services.router.autoscale.advisor import AutoscaleAdvisor, FleetKey, ScalingAdvice, fleet_usage
from services.router.embedding.machine import EmbeddingFleet
from services.router.fleet.registry import Registry
from services.router.relay.failover import Failover
from services.router.relay.intake import Intake
from services.router.relay.telemetry import INEXACT_MOVES, MOVES, PLACEMENTS

REPLICA_STATE: Final = Family(
    "outrider_router_replica_state",
    "1 for the state that a replica is in, 0 for the others.",
)
REPLICA_RTT: Final = Family(
    "outrider_router_replica_rtt_seconds",
    "Smoothed round trip to a replica, where it was measured.",
)
REPLICA_QUARANTINES: Final = Family(
    "outrider_router_replica_quarantines",
    "How often a replica was put into quarantine.",
)
REPLICA_INCONSISTENT: Final = Family(
    "outrider_router_replica_inconsistent",
    "1 where sessions are opened as of another model identity than is reported, else 0.",
)
TRANSITIONS: Final = Family(
    "outrider_router_replica_transitions",
    "Changes of state of replicas, by the new state.",
)

WAITING: Final = Family("outrider_router_waiting_sessions", "Sessions that wait for a place.")
WAIT: Final = Family(
    "outrider_router_wait_seconds",
    "How long sessions waited for a place; 0 without a wait.",
)
REFUSED: Final = Family("outrider_router_refused", "Sessions that were refused, by cause.")
SPILLED: Final = Family(
    "outrider_router_spilled",
    "Sessions sent to another region than their own, by cause.",
)
TENANT_SESSIONS: Final = Family(
    "outrider_router_tenant_sessions",
    "Sessions of tenants, by outcome: admitted or refused.",
)
TENANT_TOKENS: Final = Family(
    "outrider_router_tenant_tokens",
    "Tokens of tenants, prompts and replies.",
)
TENANT_COST: Final = Family(
    "outrider_router_tenant_cost",
    "What the sessions of tenants cost, in units of the configured currency.",
)

EMBEDDING_REQUESTS: Final = Family(
    "outrider_router_embedding_requests",
    "Requests for vectors, by outcome: done, or error where inputs are left without an answer.",
)
EMBEDDING_INPUTS: Final = Family(
    "outrider_router_embedding_inputs",
    "Texts of requests for vectors, by what became of them: vector, error.",
)
EMBEDDING_TOKENS: Final = Family(
    "outrider_router_embedding_tokens",
    "Tokens of texts that have their vectors.",
)
EMBEDDING_MOVES: Final = Family(
    "outrider_router_embedding_moves",
    "Texts sent to another replica, as the one that had them was lost.",
)
EMBEDDING_SHORTAGES: Final = Family(
    "outrider_router_embedding_shortages",
    "Parts of requests for vectors for which there was no replica.",
)
EMBEDDING_PENDING: Final = Family(
    "outrider_router_embedding_pending_inputs",
    "Texts without an answer.",
)

DESIRED: Final = Family(
    "outrider_router_desired_replicas",
    "Replicas that a region should have for a model.",
)
SERVING: Final = Family(
    "outrider_router_serving_replicas",
    "Replicas that a region has for a model.",
)
LATE_SHARE: Final = Family(
    "outrider_router_late_ratio",
    "Share of the requests of the window that were late by router.autoscale, or found no room, "
    "0 to 1.",
)
WINDOW_REQUESTS: Final = Family(
    "outrider_router_window_requests",
    "Requests that had their first token, or found no room, within the window.",
)
UTILIZATION: Final = Family(
    "outrider_router_utilization_ratio",
    "Sessions over slots, or queued work over the objective: the larger, so it may exceed 1; "
    "mean of the window.",
)

WAIT_BOUNDARIES_S: Final = (
    *(0.0, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 60.0),
)
_MODEL_CAUSES: Final = ("slo", "queue", "background", "wake_up")
_REPLICA_INTERVAL_S: Final = 1.0
_REVIEW_INTERVAL_S: Final = 1.0

_log = structlog.get_logger()


class ReplicaMetrics:
    """Logs changes of the replicas' states at once, and updates their gauges once a second."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._flushed_at = float("-inf")
        metrics.from_zero(TRANSITIONS, "state", [state.name.lower() for state in PeerState])
        self._inconsistent: set[str] = set()
        """Names of those that were logged as such."""
        self._shown: set[str] = set()
        """Names of replicas whose counters are shown: Prometheus keeps a row for each anyway."""

    def tick(self, registry: Registry, now: float) -> None:
        """Called often."""
        for it in registry.take_transitions():
            tell = _log.warning if it.after.is_trouble else _log.info
            tell(
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
        for it, labels in rows:
            if it.name not in self._shown:
                self._shown.add(it.name)
                self._metrics.from_zero(PLACEMENTS, others=labels)
                for family in (MOVES, INEXACT_MOVES):
                    self._metrics.from_zero(family, "replica", (it.name,))
        table = self._metrics.table
        table(REPLICA_STATE).set(row for it, labels in rows for row in state_rows(it.state, labels))
        table(REPLICA_RTT).set(
            (it.rtt.smoothed_ms / 1e3, labels) for it, labels in rows if it.rtt.is_measured
        )
        table(REPLICA_QUARANTINES).set((it.health.quarantine.count, labels) for it, labels in rows)
        table(REPLICA_INCONSISTENT).set((float(it.is_inconsistent), labels) for it, labels in rows)


class AdmissionMetrics:
    """Metrics of the queue, of refused, spilled and admitted sessions, and of costs."""

    def __init__(self, metrics: Metrics, admission: Admission, registry: Registry) -> None:
        self._metrics = metrics
        self._admission = admission
        self._registry = registry
        self._shown: set[str] = set()
        """Models whose counters of refusals are shown; the registry bounds them."""

    def tick(self) -> None:
        """Export what was counted since the last call."""
        waiting = dict.fromkeys(product(self._registry.models(), Priority), 0)
        waiting |= self._admission.num_waiting()
        self._metrics.table(WAITING).set(
            (count, {"priority": priority.name, "model": model})
            for (model, priority), count in waiting.items()
        )
        for model in self._registry.models() - self._shown:
            self._shown.add(model)
            for priority in Priority:
                known = {"priority": priority.name, "model": model}
                self._metrics.from_zero(REFUSED, "cause", _MODEL_CAUSES, others=known)
        stats = self._admission.stats.take()
        waits = self._metrics.histogram(WAIT, WAIT_BOUNDARIES_S)
        for priority, model, wait_ms in stats.waits_ms:
            waits.record(wait_ms / 1e3, {"priority": priority.name, "model": model})
        self._count(REFUSED, stats.refused, ("priority", "cause", "model"))
        self._count(SPILLED, stats.spilled, ("home", "region", "cause"))
        self._count(TENANT_SESSIONS, stats.sessions, ("tenant", "outcome"))
        self._count(TENANT_TOKENS, stats.tokens, ("tenant",))
        costs = {labels: nanos / NANOS for labels, nanos in stats.costs_nanos.items()}
        self._count(TENANT_COST, costs, ("tenant", "model"))

    def _count(
        self, name: Family, counts: Mapping[tuple[str, ...], float], labels: tuple[str, ...]
    ) -> None:
        counter = self._metrics.counter(name)
        for values, count in counts.items():
            counter.add(count, dict(zip(labels, values, strict=True)))


class EmbeddingMetrics:
    """Requests for vectors."""

    def __init__(self, metrics: Metrics, fleet: EmbeddingFleet) -> None:
        self._metrics = metrics
        self._fleet = fleet

    def tick(self) -> None:
        """Export the counts since the last call. A model that no replica serves is exported with an
        empty name, because clients choose such names freely."""
        stats, known = self._fleet.stats.take(), self._fleet.registry.models()
        by_outcome = ((EMBEDDING_REQUESTS, stats.requests), (EMBEDDING_INPUTS, stats.inputs))
        for family, counts in by_outcome:
            counter = self._metrics.counter(family)
            for (model, outcome), count in counts.items():
                named = model if model in known else ""
                counter.add(count, {"model": named, "outcome": outcome})
        for family, found in (
            (EMBEDDING_TOKENS, stats.tokens),
            (EMBEDDING_MOVES, stats.moves),
            (EMBEDDING_SHORTAGES, stats.shortages),
        ):
            counter = self._metrics.counter(family)
            for (model,), count in found.items():
                counter.add(count, {"model": model if model in known else ""})
        self._metrics.gauge(EMBEDDING_PENDING).set(self._fleet.held.num_inputs)


class AutoscaleMetrics:
    """How many replicas each region should have, reviewed once a second."""

    def __init__(
        self,
        metrics: Metrics,
        registry: Registry,
        intake: Intake,
        failover: Failover,
        fleet_view: LiveFleetView,
        autoscale: AutoscaleAdvisor,
        slo_ttft_ms: float,
        woken: Collection[FleetKey] = (),
    ) -> None:
        """`woken`: fleets that are scaled to zero."""
        self._metrics = metrics
        self._registry = registry
        self._intake = intake
        self._failover = failover
        self._fleet_view = fleet_view
        self._autoscale = autoscale
        self._slo_ttft_ms = slo_ttft_ms
        self._woken = woken
        self._next_review_at = 0.0
        self.advice: Mapping[FleetKey, ScalingAdvice] = {}
        """Advice of the last review, by fleet."""

    def tick(self, now: float) -> None:
        """Called often."""
        if now < self._next_review_at:
            return
        self._next_review_at = now + _REVIEW_INTERVAL_S
        waiting = Counter(
            FleetKey(self._fleet_view.home(request), request.model)
            for request in (*self._intake.waiting(), *self._failover.waiting())
        )
        found = fleet_usage(self._registry, waiting, self._slo_ttft_ms, self._woken)
        self.advice = self._autoscale.advise(found, now)
        self._export(self.advice)

    def _export(self, advice: Mapping[FleetKey, ScalingAdvice]) -> None:
        rows = [({"region": p.region, "model": p.model}, found) for p, found in advice.items()]
        table = self._metrics.table
        table(DESIRED).set((found.desired_replicas, labels) for labels, found in rows)
        table(SERVING).set((found.num_replicas, labels) for labels, found in rows)
        table(LATE_SHARE).set((found.late_share, labels) for labels, found in rows)
        table(WINDOW_REQUESTS).set((found.num_requests, labels) for labels, found in rows)
        table(UTILIZATION).set((found.utilization, labels) for labels, found in rows)
