"""What operators see of the replicas."""

from __future__ import annotations

from random import Random

from structlog.typing import EventDict

from outrider.peers.health import PeerState
from outrider.telemetry.metrics import Metrics
from services.router.autoscale.advisor import AutoscaleAdvisor
from services.router.autoscale.policy import AutoscalePolicy
from services.router.embedding.machine import EmbeddingFleet
from services.router.embedding.placement import EmbeddingPlacement
from services.router.embedding.policy import EmbeddingPolicy
from services.router.fleet.entries import ReplicaConfig
from services.router.fleet.registry import Registry
from services.router.fleet.replica import ServedModel
from services.router.metrics import EmbeddingMetrics, ReplicaMetrics


def test_every_replica_has_its_gauges_and_the_gone_have_none() -> None:
    metrics = Metrics("router")
    registry = Registry([ReplicaConfig("a", "us", "h:1")], rtt_ms=lambda _: 50.0, now=0.0)
    registry.discover("h:2", "dns:h:2", "r", 0.0)
    replicas = ReplicaMetrics(metrics)

    def sample(name: str, replica: str = "a", region: str = "us") -> float | None:
        labels = {"replica": replica, "region": region}
        return metrics.registry.get_sample_value(f"outrider_router_replica_{name}", labels)

    def state(replica: str = "a", region: str = "us") -> list[PeerState]:
        """Those that are shown as 1; the others as 0."""
        labels = {"replica": replica, "region": region}
        rows = {
            it: metrics.registry.get_sample_value(
                "outrider_router_replica_state", {**labels, "state": it.name.lower()}
            )
            for it in PeerState
        }
        assert set(rows.values()) <= ({0.0, 1.0} if any(rows.values()) else {None})
        return [it for it, value in rows.items() if value]

    replicas.tick(registry, 0.0)
    assert state() == state("h:2", "r") == [PeerState.CONNECTING]
    assert sample("rtt_seconds") is None, "guesses are not shown as measured"
    registry.connected("a", ServedModel("m", b"d"), 0.5)
    registry.probed("a", 12.5, serving=True, now=0.5)
    registry.hung("a", "no token", 0.6)
    registry.remove("h:2")
    replicas.tick(registry, 0.9)
    assert state() == [PeerState.CONNECTING], "not with every tick"
    replicas.tick(registry, 1.0)
    assert state() == [PeerState.QUARANTINED]
    assert sample("rtt_seconds") == 0.0125
    assert sample("quarantines") == 1.0
    assert sample("inconsistent") == 0.0
    assert state("h:2", "r") == [], "it is gone"
    changed = metrics.registry.get_sample_value
    assert changed("outrider_router_replica_transitions_total", {"state": "quarantined"}) == 1.0
    metrics.close()


def test_a_replica_that_is_lost_is_a_warning(logs: list[EventDict]) -> None:
    metrics = Metrics("router")
    registry = Registry([ReplicaConfig("a", "us", "h:1")], rtt_ms=lambda _: 50.0, now=0.0)
    registry.connected("a", ServedModel("m", b"d"), 0.5)
    registry.probed("a", 12.5, serving=True, now=0.5)
    registry.lost("a", "connection reset", 0.6)
    ReplicaMetrics(metrics).tick(registry, 1.0)
    told = [(it["log_level"], it["after"]) for it in logs if it["event"] == "replica_state"]
    assert told == [("info", "READY"), ("warning", "DOWN")]
    metrics.close()


def test_a_replica_that_contradicts_itself_is_logged_once(logs: list[EventDict]) -> None:
    metrics = Metrics("router")
    registry = Registry([ReplicaConfig("a", "us", "h:1")], rtt_ms=lambda _: 50.0, now=0.0)
    replicas = ReplicaMetrics(metrics)

    def inconsistent() -> float | None:
        labels = {"replica": "a", "region": "us"}
        name = "outrider_router_replica_inconsistent"
        return metrics.registry.get_sample_value(name, labels)

    for now in range(1, 5):
        registry.connected("a", ServedModel("m", b"d", identity=b"\x0a" * 32), now)
        registry.contradicted("a", b"\x0b" * 32, now)
        replicas.tick(registry, now)
        assert inconsistent() == (now > 1)
    registry.opened("a", 1, 0.0, 5.0)
    replicas.tick(registry, 5.0)
    assert inconsistent() == 0.0

    told = [
        line for line in logs if line["event"] in ("replica_inconsistent", "replica_consistent")
    ]
    assert [line["event"] for line in told] == ["replica_inconsistent", "replica_consistent"]
    assert told[0]["reports"] == "0a0a0a0a" and told[0]["opens_as"] == "0b0b0b0b"
    metrics.close()


def test_requests_for_vectors_are_counted_by_models_that_replicas_have() -> None:
    metrics = Metrics("router")
    registry = Registry([ReplicaConfig("a", "us", "h:1")], rtt_ms=lambda _: 50.0, now=0.0)
    registry.connected("a", ServedModel("e", b"", dimensions=8), 0.5)
    fleet = EmbeddingFleet(
        registry,
        EmbeddingPlacement(Random(1)),
        EmbeddingPolicy(),
        AutoscaleAdvisor(AutoscalePolicy()),
        return_s=1.0,
    )
    exported = EmbeddingMetrics(metrics, fleet)
    fleet.held.num_inputs = 7
    fleet.stats.ended("e", is_done=True)
    fleet.stats.ended("whatever a client writes", is_done=False)
    fleet.stats.answered("e", 3, 50)
    fleet.stats.failed("e", 2)
    fleet.stats.moved("e", 4)
    fleet.stats.short("e")
    for _ in range(2):
        exported.tick()  # what was exported is not counted again

    def sample(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    assert sample("outrider_router_embedding_requests_total", model="e", outcome="done") == 1
    assert sample("outrider_router_embedding_requests_total", model="", outcome="error") == 1
    assert sample("outrider_router_embedding_inputs_total", model="e", outcome="vector") == 3
    assert sample("outrider_router_embedding_inputs_total", model="e", outcome="error") == 2
    assert sample("outrider_router_embedding_tokens_total", model="e") == 50
    assert sample("outrider_router_embedding_moves_total", model="e") == 4
    assert sample("outrider_router_embedding_shortages_total", model="e") == 1
    assert sample("outrider_router_embedding_pending_inputs") == 7
    metrics.close()
