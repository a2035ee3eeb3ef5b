"""The cases of the study and what is measured of each.

A load is a share of what the replicas serve at most, every shared prefix cached and no network. The
measured time follows a warm-up in which each shared prefix is asked for once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from bench.harness import quantile
from bench.oracle.omniscient import Omniscient, World, least_ttft_ms
from bench.oracle.policies import Gorgo, Scorers, SkyWalker, WaitAndWiden
from bench.oracle.replicas import ModelReplica, Speed
from bench.scale import calls
from bench.scale.calls import CallTimes
from bench.scale.clock import Clock
from bench.scale.demand import GROUPS_PER_REPLICA, Ask, Demand, Shape
from bench.scale.fleet import Fleet, FleetSetup
from bench.scale.regions import REGIONS, Region
from bench.scale.replicas import Hooks
from bench.scale.routers import MeshRouter, RoundRobin, Router

NUM_REPLICAS = 100
NUM_REGIONS = 5
TTFT_MS = 1000.0
"""Objective: the router's own for sessions of the middle class (AdmissionPolicy)."""
ITL_MS = 100.0
"""Objective for the mean time between two tokens of a reply: ten tokens a second, faster than one
reads."""
WARM_S = 12.0
SECONDS = 6.0
"""That are measured."""
DRAIN_S = 20.0
"""Time after the last request in which all have to end."""
SHAPE = Shape()


@dataclass(frozen=True, slots=True)
class Load(Region):
    """A region with a given load."""

    share: float = 0.0
    """Of what its own replicas serve at most."""
    burst_share: float = 0.0
    """The same in the burst; 0: there is none."""

    def demand(self, day: float) -> float:
        """At this part of the measured time."""
        is_burst = self.burst_share and _BURST[0] <= day < _BURST[1]
        return self.burst_share if is_burst else self.share


_BURST = (0.3, 0.5)


def _evenly(share: float, burst_share: float = 0.0) -> tuple[Load, ...]:
    return tuple(
        Load(it.name, it.latitude, it.longitude, share, burst_share) for it in REGIONS[:NUM_REGIONS]
    )


def _one_overloaded(own: float, others: float) -> tuple[Load, ...]:
    first, *rest = _evenly(others)
    return (Load(first.name, first.latitude, first.longitude, own), *rest)


LOADS: dict[str, tuple[Load, ...]] = {
    "0.5": _evenly(0.5),
    "0.8": _evenly(0.8),
    "0.95": _evenly(0.95),
    "0.5, for 1.2 s 1.5": _evenly(0.5, 1.5),
    "one region 2.0, others 0.3": _one_overloaded(2.0, 0.3),
}

MakePolicy: TypeAlias = Callable[[Region, Sequence[Region], int], Router]

OURS, OMNISCIENT = "outrider", "omniscient"
POLICIES: dict[str, MakePolicy] = {
    OURS: MeshRouter,
    "wait-and-widen (Stargate)": WaitAndWiden,
    "GORGO": Gorgo,
    "SkyWalker": SkyWalker,
    "llm-d's scorers": Scorers,
    "round robin": lambda own, regions, seed: RoundRobin(own.name),
}
WORK_PRICES = (0.0, 2.0)
"""Of the omniscient placement; in each case the better of them counts, with hindsight."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    load: str
    policy: str
    seed: int
    work_price: float = 0.0
    """Of the omniscient placement."""
    num_replicas: int = NUM_REPLICAS
    seconds: float = SECONDS
    warm_s: float = WARM_S
    real_replicas: bool = False


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Of the measured requests."""

    case: Case
    num_requests: int
    goodput: float
    """Share that met both objectives."""
    ttft_p50_ms: float
    ttft_p95_ms: float
    """Of all requests; one that got no token counts as the longest."""
    itl_p95_ms: float
    """Of the mean times of replies of two tokens or more."""
    hit_rate: float
    """Cached tokens over prompt tokens."""
    away_share: float
    """Placed outside of their region."""
    num_failed: int
    least_ms: float
    """The median time that no placement can go below."""


def run_case(case: Case, times: CallTimes, requests_per_s: float) -> CaseResult:
    """Run it; the same case gives the same result. `requests_per_s`: what a replica
    serves at most."""
    regions = LOADS[case.load]
    setting = FleetSetup(regions, case.num_replicas, drain_s=DRAIN_S, seed=case.seed)
    world = World(times, case.work_price)
    make_router = POLICIES.get(case.policy, lambda own, regions, seed: Omniscient(world))
    makers = () if case.real_replicas else (world.make_replica,)
    num_groups = GROUPS_PER_REPLICA * case.num_replicas
    demand = Demand(
        regions,
        requests_per_s * case.num_replicas,
        case.seconds,
        num_groups=num_groups,
        seed=case.seed,
        warm_s=case.warm_s,
        shape=SHAPE,
    )
    gc.disable()  # as in bench.scale.study
    try:
        outcome = Fleet(setting, times, make_router, *makers).run(demand.asks())
    finally:
        gc.enable()
    return _result(case, [it for it in outcome.asks if it.number > num_groups], times)


def _result(case: Case, asks: Sequence[Ask], times: CallTimes) -> CaseResult:
    ttft_ms = sorted(it.ttft_ms if it.first_at else float("inf") for it in asks)
    longest = max((it for it in ttft_ms if it < float("inf")), default=0.0)
    ttft_ms = [min(it, longest) for it in ttft_ms]
    itl_ms = [_itl_ms(it) for it in asks if it.ended_at and it.reply_tokens > 1]
    count = max(1, len(asks))
    return CaseResult(
        case,
        num_requests=len(asks),
        goodput=sum(map(_met, asks)) / count,
        ttft_p50_ms=quantile(ttft_ms, 0.5),
        ttft_p95_ms=quantile(ttft_ms, 0.95),
        itl_p95_ms=quantile(itl_ms or [0.0], 0.95),
        hit_rate=sum(it.cached_tokens for it in asks) / max(1, sum(len(it.prompt) for it in asks)),
        away_share=sum(it.began_away for it in asks) / count,
        num_failed=sum(not it.ended_at for it in asks),
        least_ms=quantile([least_ttft_ms(it, times, SHAPE.shared_tokens) for it in asks], 0.5),
    )


def _met(ask: Ask) -> bool:
    if not ask.ended_at or ask.ttft_ms > TTFT_MS:
        return False
    return ask.reply_tokens < 2 or _itl_ms(ask) <= ITL_MS


def _itl_ms(ask: Ask) -> float:
    return (ask.ended_at - ask.first_at) * 1e3 / (ask.reply_tokens - 1)


def replica_capacity(times: CallTimes, num_asks: int = 2000) -> float:
    """Requests a second that a replica serves with all of them waiting from the start and their
    shared beginning cached."""
    clock = Clock()
    ended: list[float] = []
    hooks = Hooks(
        committed=lambda ask, count: None,
        finished=lambda ask: ended.append(clock.now),
        refused=lambda ask, reason: None,
    )
    replica = ModelReplica(clock, times, Speed(times), hooks, seed=1)
    demand = Demand(REGIONS[:1], num_asks, 4.0, num_groups=1, seed=1, diurnal=False)
    for _, ask in zip(range(num_asks), demand.asks(), strict=False):
        replica.open(ask)
    clock.run(10.0 * num_asks)
    return num_asks / ended[-1]


@cache
def capacity() -> float:
    """Of a replica with calls that take what was recorded."""
    return replica_capacity(calls.recorded())


def run_one(case: Case) -> CaseResult:
    """With calls that take what was recorded."""
    return run_case(case, calls.recorded(), capacity())
