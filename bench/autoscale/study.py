"""The cases of the study and what is measured of each."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import islice

from bench.autoscale.day import DAY_S, OUTAGE_AT_S, asks
from bench.autoscale.fleet import REGION, Day, Fleet, Setup
from bench.autoscale.policies import (
    Factors,
    Foresight,
    Keda,
    Saturation,
    ScalingPolicy,
    llmd,
    ours,
    plain,
    scrape_s,
    vllm,
)
from bench.autoscale.replicas import FluidReplica
from bench.autoscale.router import ScaledRouter
from bench.harness import RESULTS, quantile
from bench.oracle.replicas import MAX_SESSIONS, Speed
from bench.scale import calls
from bench.scale.clock import Clock
from bench.scale.demand import Ask
from bench.scale.replicas import Hooks
from services.router.autoscale.policy import AutoscalePolicy

TTFT_MS = 1000.0
"""Objective: the router's own for sessions of the middle class (AdmissionPolicy)."""
SLOW_START_S = 120.0
"""As a replica on a GPU may take, with a large model to load; not measured."""
DRAIN_S = 30.0
"""drain_s of deploy/base/inference/outrider.toml."""
MAX_REPLICAS = ours().max_replicas
LLMD_RUNNING = 11.0
"""Running requests of a replica, by llm-d's guide to be found for each model: 70 % of its places,
as with the plain autoscaler."""
NUM_CAPACITY_ASKS = 2000


@cache
def capacity() -> float:
    """Chats a second that a replica serves at most, with all of them waiting from the start."""
    clock = Clock()
    ended: list[float] = []

    def committed(ask: Ask, count: int) -> None:
        ask.committed += count

    hooks = Hooks(committed, lambda ask: ended.append(clock.now), lambda ask, why: None)
    replica = FluidReplica(clock, Speed(calls.recorded()), hooks)
    for ask in islice(asks(1), NUM_CAPACITY_ASKS):
        replica.open(ask)
    clock.run(60.0 * NUM_CAPACITY_ASKS)
    return len(ended) / ended[-1]


OURS = "outrider"
FORESIGHT = "foresight"
MakePolicy = Callable[["Case"], ScalingPolicy]
POLICIES: dict[str, MakePolicy] = {
    FORESIGHT: lambda case: Foresight(
        [*asks(case.seed, case.share)], case.start_s, capacity(), MAX_REPLICAS
    ),
    OURS: lambda case: Keda(ours()),
    "llm-d, as published": lambda case: Keda(llmd(MAX_REPLICAS)),
    "llm-d, sized": lambda case: Keda(
        llmd(MAX_REPLICAS, running=LLMD_RUNNING, window_s=case.start_s)
    ),
    "llm-d, saturation": lambda case: Saturation(MAX_REPLICAS),
    "Stargate's (NVCF)": lambda case: Factors(MAX_REPLICAS),
    "vLLM production-stack": lambda case: Keda(vllm(MAX_REPLICAS)),
    "HPA, running requests": lambda case: Keda(plain(MAX_REPLICAS, MAX_SESSIONS)),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One day."""

    policy: str
    start_s: float
    seed: int
    share: float = 1.0
    """Of the day's chats."""
    until_s: float = DAY_S


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of it."""

    case: Case
    num_chats: int
    replica_hours: float
    met_share: float
    """Chats whose first token came within TTFT_MS of their first try."""
    ttft_p50_ms: float
    ttft_p95_ms: float
    ttft_p99_ms: float
    """One that was refused for good counts as the longest."""
    num_delayed: int
    """Refused at first, and served when they came again."""
    num_given_up: int
    """Refused for good."""
    num_lost: int
    """Let in, and without a whole reply in the end."""
    num_moves: int
    num_woken: int
    """That came while no replica served."""
    longest_wake_s: float
    num_changes: int
    """Of the number of replicas."""


def starts_s() -> tuple[float, float]:
    """The median warm start that `bench.starts` has recorded, and a slow one."""
    tables = json.loads((RESULTS / "starts.json").read_text(encoding="utf-8"))["tables"]
    (warm,) = (row for row in tables[0]["rows"] if row[0] == "replica, warm")
    return round(float(warm[2]), 1), SLOW_START_S


def run_case(case: Case, speed: Speed) -> CaseResult:
    """Run it; the same case gives the same result."""
    policy = AutoscalePolicy(max_replicas=MAX_REPLICAS)
    router = ScaledRouter(REGION, [REGION], case.seed, policy)
    setup = Setup(case.start_s, DRAIN_S, scrape_s(), OUTAGE_AT_S)
    fleet = Fleet(setup, router, speed, POLICIES[case.policy](case))
    chats = (ask for ask in asks(case.seed, case.share) if ask.at < case.until_s)
    gc.disable()  # as in bench.scale.study
    try:
        day = fleet.run(chats, case.until_s)
    finally:
        gc.enable()
    return _result(case, day)


def _result(case: Case, day: Day) -> CaseResult:
    found = [ask.ttft_ms for ask in day.asks if ask.first_at]
    longest = max(found, default=0.0)
    ttft_ms = sorted([*found, *[longest] * (len(day.asks) - len(found))])
    woken_s = [ask.ttft_ms / 1e3 for ask in day.woken if ask.first_at]
    return CaseResult(
        case,
        num_chats=len(day.asks),
        replica_hours=day.replica_s / 3600.0,
        met_share=sum(it <= TTFT_MS for it in found) / max(1, len(day.asks)),
        ttft_p50_ms=quantile(ttft_ms, 0.5),
        ttft_p95_ms=quantile(ttft_ms, 0.95),
        ttft_p99_ms=quantile(ttft_ms, 0.99),
        num_delayed=len([it for it in day.refused if not it.error]),
        num_given_up=sum(bool(ask.error) for ask in day.asks),
        num_lost=sum(not (ask.error or _is_whole(ask)) for ask in day.asks),
        num_moves=day.num_moves,
        num_woken=len(day.woken),
        longest_wake_s=max(woken_s, default=0.0),
        num_changes=day.num_changes,
    )


def _is_whole(ask: Ask) -> bool:
    return bool(ask.ended_at) and ask.committed == ask.reply_tokens


def run_one(case: Case) -> CaseResult:
    """With calls that take what was recorded."""
    return run_case(case, Speed(calls.recorded()))
