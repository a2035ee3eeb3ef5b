"""Registries for tests, in virtual time."""

from __future__ import annotations

from outrider.peers.health import HealthPolicy, PeerState, QuarantinePolicy
from services.router.fleet.entries import ReplicaConfig
from services.router.fleet.registry import FleetPolicy, Registry
from services.router.fleet.replica import ServedModel

MODEL = ServedModel("m", b"d" * 32, 2048, (1, 2, 3))
C, R, S, D, G, Q, T = PeerState
POLICY = FleetPolicy(
    HealthPolicy(3.0, 5.0, QuarantinePolicy(max_failures=2, window_s=30.0, first_s=2.0)),
    silence_s=2.0,
)


def registry(*names: str, now: float = 0.0) -> Registry:
    replicas = [ReplicaConfig(name, "r", "h:1") for name in names or ("a",)]
    return Registry(replicas, rtt_ms={"r": 10.0, "": 50.0}.__getitem__, policy=POLICY, now=now)


def connected(*names: str) -> Registry:
    """All of them are READY at 0."""
    table = registry(*names)
    for replica in list(table):
        table.connected(replica.name, MODEL, 0.0)
    table.take_transitions()
    return table


def changes(table: Registry) -> list[tuple[str, PeerState, PeerState]]:
    return [(t.replica, t.before, t.after) for t in table.take_transitions()]


def pass_time(table: Registry, since: float, until: float) -> None:
    """Tick, as a router does that is not held up."""
    for tenth in range(round(since * 10), round(until * 10) + 1):
        table.expire(tenth / 10)
