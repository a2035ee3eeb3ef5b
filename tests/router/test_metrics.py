"""What operators see of the replicas."""

from __future__ import annotations

from outrider.peers.health import PeerState
from outrider.telemetry.metrics import Metrics
from services.router.config import ReplicaConfig
from services.router.fleet.registry import Registry
from services.router.fleet.replica import ServedModel
from services.router.metrics import ReplicaMetrics


def test_every_replica_has_its_gauges_and_the_gone_have_none() -> None:
    metrics = Metrics("router")
    registry = Registry([ReplicaConfig("a", "us", "h:1")], rtt_ms=lambda _: 50.0, now=0.0)
    registry.discover("h:2", "dns:h:2", "r", 0.0)
    replicas = ReplicaMetrics(metrics)

    def sample(name: str, replica: str = "a", region: str = "us") -> float | None:
        labels = {"replica": replica, "region": region}
        return metrics.registry.get_sample_value(f"outrider_router_replica_{name}", labels)

    replicas.tick(registry, 0.0)
    assert sample("state") == sample("state", "h:2", "r") == PeerState.CONNECTING
    assert sample("rtt_ms") is None, "guesses are not shown as measured"
    registry.connected("a", ServedModel("m", b"d"), 0.5)
    registry.probed("a", 12.5, serving=True, now=0.5)
    registry.hung("a", "no token", 0.6)
    registry.remove("h:2")
    replicas.tick(registry, 0.9)
    assert sample("state") == PeerState.CONNECTING, "not with every tick"
    replicas.tick(registry, 1.0)
    assert (sample("state"), sample("rtt_ms")) == (PeerState.QUARANTINED, 12.5)
    assert sample("quarantines") == 1.0
    assert sample("state", "h:2", "r") is None
    changed = metrics.registry.get_sample_value
    assert changed("outrider_router_replica_transitions_total", {"state": "quarantined"}) == 1.0
    metrics.close()
