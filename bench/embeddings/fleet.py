"""1 to 1,000 replicas in virtual time, with service times as measured (pure but for the time that
the router's own choice takes, which is measured here).

Every router has the same number of requests under way for each replica. It chooses as the real one
does (`EmbeddingPlacement`), from loads that were reported up to 50 ms ago and from what it sent
itself, not knowing what other routers send. It makes one choice at a time, which takes the time
that it takes here.
"""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Final

from bench.harness import Run, median
from bench.scale.clock import Clock
from outrider.peers.health import HealthPolicy, PeerHealth, PeerState
from outrider.peers.round_trip import RoundTrip
from services.router.embedding.placement import EmbeddingPlacement
from services.router.fleet.replica import Replica, ReplicaLoad, ServedModel

SIZES: Final = (1, 10, 100, 1000)
PUBLISHED: Final = {1: 1.0, 10: 0.85, 100: 0.75, 1000: 0.65}
"""What the seed's page projects."""
PUBLISHED_TOKEN_MS: Final = 1000 / 22_903
"""Of one node there."""
_REPLICAS_PER_ROUTER: Final = 100
_REQUESTS_PER_REPLICA: Final = 2
_PART_INPUTS: Final = 64
_REPORT_S: Final = 0.05
_RTT_S: Final = 0.001
_MODEL: Final = ServedModel("e", b"", identity=b"1", dimensions=384)


@dataclass(frozen=True, slots=True)
class FleetResult:
    """What a fleet did."""

    efficiency: float
    """Share of the time in which replicas work, of which there is always enough for all."""
    choice_us: float


class _Node:
    """One replica: parts one after the other."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[_Router, int]] = deque()
        self.queued_tokens = 0
        self.idle_s = 0.0
        self.idle_since: float | None = 0.0
        """None: it works."""

    def idle_at(self, now: float) -> float:
        """Seconds so far."""
        return self.idle_s + (0.0 if self.idle_since is None else now - self.idle_since)


class _Router:
    """One router."""

    def __init__(self, replicas: list[Replica], seed: int) -> None:
        self.placement = EmbeddingPlacement(Random(seed))
        self.replicas = replicas
        self.free_at = 0.0


class _Fleet:
    def __init__(self, size: int, token_s: float, tokens: int, seed: int) -> None:
        self.clock = Clock()
        self.rng = random.Random(seed)
        self.token_s = token_s
        self.tokens = tokens
        self.nodes = [_Node() for _ in range(size)]
        self.choice_s: list[float] = []
        num_routers = max(1, size // _REPLICAS_PER_ROUTER)
        load = ReplicaLoad(row_ms=token_s * 1e3)
        self.routers = [
            _Router([_replica(number, load) for number in range(size)], seed)
            for seed in range(num_routers)
        ]
        for number in range(size * _REQUESTS_PER_REPLICA):
            router = self.routers[number % num_routers]
            self.clock.at(self.rng.uniform(0, 0.05), self.ask, router)
        self.clock.at(0.0, self.report)

    def ask(self, router: _Router) -> None:
        """A request of one part reaches the router; its text's lengths vary."""
        tokens = round(self.tokens * _PART_INPUTS * self.rng.uniform(0.5, 1.5))
        began = time.perf_counter()
        chosen = router.placement.choose(
            router.replicas, "e", tokens, identity=b"", residency=()
        ).name
        took_s = time.perf_counter() - began
        self.choice_s.append(took_s)
        router.placement.sent(chosen, tokens)
        router.free_at = max(router.free_at, self.clock.now) + took_s
        self.clock.at(router.free_at + _RTT_S / 2, self.arrive, router, int(chosen), tokens)

    def arrive(self, router: _Router, number: int, tokens: int) -> None:
        node = self.nodes[number]
        node.waiting.append((router, tokens))
        node.queued_tokens += tokens
        if len(node.waiting) == 1:
            node.idle_s, node.idle_since = node.idle_at(self.clock.now), None
            self.clock.after(tokens * self.token_s, self.done, number)

    def done(self, number: int) -> None:
        node = self.nodes[number]
        router, tokens = node.waiting.popleft()
        node.queued_tokens -= tokens
        router.placement.settled(str(number), tokens)
        self.clock.after(_RTT_S, self.ask, router)
        if node.waiting:
            self.clock.after(node.waiting[0][1] * self.token_s, self.done, number)
        else:
            node.idle_since = self.clock.now

    def report(self) -> None:
        """All at once, which is the worst for spreading."""
        loads = [
            ReplicaLoad(queued_prompt_tokens=it.queued_tokens, row_ms=self.token_s * 1e3)
            for it in self.nodes
        ]
        for router in self.routers:
            for replica, load in zip(router.replicas, loads, strict=True):
                replica.load = load
        self.clock.after(_REPORT_S, self.report)


def simulate(size: int, *, token_ms: float, tokens: int, parts: int, seed: int) -> FleetResult:
    """About so many parts for each replica."""
    fleet = _Fleet(size, token_ms / 1e3, tokens, seed)
    part_s = token_ms / 1e3 * tokens * _PART_INPUTS
    fleet.clock.run(part_s * 2)
    before = sum(it.idle_at(fleet.clock.now) for it in fleet.nodes)
    fleet.clock.run(part_s * (2 + parts))
    idle_s = sum(it.idle_at(fleet.clock.now) for it in fleet.nodes) - before
    efficiency = 1.0 - idle_s / (size * part_s * parts)
    return FleetResult(efficiency, median(fleet.choice_s) * 1e6)


def measure(run: Run, token_ms: float, sizes: tuple[int, ...] = SIZES) -> None:
    """Adds the table; `token_ms`: of a replica here, as measured."""
    table = run.table(
        "Fleets of replicas, simulated: the share of the time in which they work",
        *("replicas", "routers", "as fast as one here", "as fast as the seed's page says of one"),
        *("what that page projects", "a router's choice, us"),
    )
    for size in sizes:
        found = [
            simulate(size, token_ms=each, tokens=50, parts=3, seed=size)
            for each in (token_ms, PUBLISHED_TOKEN_MS)
        ]
        shares = [f"{each.efficiency:.1%}" for each in found]
        routers, projected = max(1, size // _REPLICAS_PER_ROUTER), f"{PUBLISHED[size]:.0%}"
        table.add(size, routers, *shares, projected, round(found[0].choice_us))
        run.figures[f"fleet_efficiency_{size}"] = [round(it.efficiency, 4) for it in found]
    table.note(
        f"{_REQUESTS_PER_REPLICA} requests of {_PART_INPUTS} texts for each replica are under way; "
        f"a token takes {token_ms:.3f} ms here, {PUBLISHED_TOKEN_MS:.4f} ms there, a round trip "
        f"{_RTT_S * 1e3:.0f} ms; loads are reported every {_REPORT_S * 1e3:.0f} ms."
    )


def _replica(number: int, load: ReplicaLoad) -> Replica:
    return Replica(
        name=str(number),
        region="here",
        address=f"h:{number}",
        expected_model="e",
        health=PeerHealth(HealthPolicy(), 0.0, PeerState.READY),
        rtt=RoundTrip(_RTT_S * 1e3),
        model=_MODEL,
        load=load,
    )
