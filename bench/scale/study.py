"""The runs of a study: fleets of every size, one cause of loss taken away at a time, and floors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

from bench.harness.figures import quantile
from bench.scale.calls import recorded
from bench.scale.demand import GROUPS_PER_REPLICA, Ask, Demand
from bench.scale.fleet import Fleet, Outcome, Setting
from bench.scale.regions import REGIONS, Region
from bench.scale.replicas.full import FullReplica
from bench.scale.routing.base import Router
from bench.scale.routing.floors import LeastLoaded, RoundRobin
from bench.scale.routing.mesh import MeshRouter
from services.router.admission.policy import AdmissionPolicy, Priority
from services.router.placement.request import HIGH, LOW, MEDIUM

OBJECTIVE_MS = 1000.0
"""The router's own default for sessions of the middle class (AdmissionPolicy)."""
MET_SHARE = 0.95
"""A fleet serves a load while so many of its requests meet the objective."""
WARM_S = 12.0
"""In which each group is asked once: about as busy as the day itself."""
NUM_REGIONS = {1: 1, 10: 2, 32: 4, 100: 6, 1000: 12}
REPORT_S = {1000: 0.25}
"""Where it is not the router's default of 50 ms: 20,000 reports a second are more than one router
process reads."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    num_replicas: int
    rate: float
    """Requests a second of one replica, on average."""
    seconds: float = 24.0
    """Of the day that is measured."""
    router: str = "outrider"
    num_regions: int = 0
    """0: as many as NUM_REGIONS says."""
    failures: bool = True
    diurnal: bool = True
    classes: tuple[int, ...] = (MEDIUM,)
    """Of priority, each as often as it stands there."""
    report_s: float = 0.0
    """0: as REPORT_S says."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """What became of a case. Of the measured day's requests alone, but for the deaths."""

    case: Case
    num_requests: int
    num_failed: int
    """Without a whole reply at the end."""
    met_share: float
    """Of the requests: whole, and their first token within the objective."""
    met_by_class: tuple[float, float, float]
    """The same of LOW, MEDIUM and HIGH ones, each by its own objective; 1.0 for none."""
    ttft_ms: tuple[float, float, float]
    """p50, p90, p99."""
    hit_rate: float
    """Cached tokens over prompt tokens."""
    away_share: float
    """Placed outside of their region at first."""
    num_deaths: int
    num_moves: int
    decision_us: tuple[float, float]
    """Real time, mean and p99; 0 where nothing is decided."""


def run_case(case: Case) -> Row:
    """Run it. The same case gives the same row, but for `decision_us`."""
    times, routers = recorded(), list[Router]()

    def make_router(own: Region, regions: Sequence[Region], seed: int) -> Router:
        routers.append(_ROUTERS[case.router](own, regions, seed))
        return routers[-1]

    fleet = Fleet(
        _setting(case),
        lambda clock, hooks, seed: FullReplica(clock, times, hooks, seed),
        make_router,
    )
    with _uncollected():
        return _row(case, fleet.run(_demand(case).asks()), routers)


@contextmanager
def _uncollected() -> Iterator[None]:
    """A large fleet is millions of objects that live to the end; looking through them again and
    again for cycles, of which there are hardly any, took most of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _setting(case: Case) -> Setting:
    return Setting(
        _regions(case),
        case.num_replicas,
        report_s=case.report_s or REPORT_S.get(case.num_replicas, 0.05),
        mtbf_s=_MTBF_S if case.failures else 0.0,
        seed=case.seed,
    )


def _demand(case: Case) -> Demand:
    return Demand(
        _regions(case),
        case.rate * case.num_replicas,
        case.seconds,
        num_groups=GROUPS_PER_REPLICA * case.num_replicas,
        seed=case.seed,
        warm_s=WARM_S,
        diurnal=case.diurnal,
        classes=case.classes,
    )


_MTBF_S = 1200.0
"""A replica dies once in twenty minutes on average: with 10 s until another stands there, some one
in a hundred is away at any time."""


def _regions(case: Case) -> Sequence[Region]:
    usual = max(count for size, count in NUM_REGIONS.items() if size <= case.num_replicas)
    return REGIONS[: case.num_regions or usual]


def _floor(
    kind: Callable[[str], Router], own: Region, regions: Sequence[Region], seed: int
) -> Router:
    return kind(own.name)


_ROUTERS: dict[str, Callable[[Region, Sequence[Region], int], Router]] = {
    "outrider": MeshRouter,
    "outrider, behind admission": partial(MeshRouter, gated=True),
    "least loaded": partial(_floor, LeastLoaded),
    "round robin": partial(_floor, RoundRobin),
}


def _row(case: Case, outcome: Outcome, routers: Sequence[Router]) -> Row:
    asks = [ask for ask in outcome.asks if ask.number > GROUPS_PER_REPLICA * case.num_replicas]
    whole = [ask for ask in asks if ask.ended_at]
    met = sum(ask.ttft_ms <= OBJECTIVE_MS for ask in whole)
    ttft_ms = [ask.ttft_ms for ask in whole] or [0.0]
    decided = [us for one in routers if isinstance(one, MeshRouter) for us in one.decision_us]
    return Row(
        case,
        num_requests=len(asks),
        num_failed=len(asks) - len(whole),
        met_share=met / max(1, len(asks)),
        met_by_class=(_met(asks, LOW), _met(asks, MEDIUM), _met(asks, HIGH)),
        ttft_ms=(quantile(ttft_ms, 0.5), quantile(ttft_ms, 0.9), quantile(ttft_ms, 0.99)),
        hit_rate=_hit_rate(asks),
        away_share=sum(ask.began_away for ask in asks) / max(1, len(asks)),
        num_deaths=outcome.num_deaths,
        num_moves=outcome.num_moves,
        decision_us=(sum(decided) / len(decided), quantile(decided, 0.99))
        if decided
        else (0.0, 0.0),
    )


def _met(asks: Sequence[Ask], priority: int) -> float:
    """Share of a class whose first token came within its objective."""
    found = [ask for ask in asks if ask.priority == priority]
    objective_ms = AdmissionPolicy().slo_ms(Priority(priority))
    met = sum(bool(ask.ended_at) and ask.ttft_ms <= objective_ms for ask in found)
    return met / len(found) if found else 1.0


def _hit_rate(asks: Sequence[Ask]) -> float:
    return sum(ask.cached_tokens for ask in asks) / max(1, sum(len(ask.prompt) for ask in asks))


def run_all(
    cases: Sequence[Case], jobs: int, progress: Callable[[int, int], None]
) -> dict[Case, Row]:
    """Every case, several at a time in processes of their own, the largest first; `progress` hears
    how many of them are done."""
    rows: dict[Case, Row] = {}
    ordered = sorted(cases, key=lambda case: -case.num_replicas * case.rate * case.seconds)
    if jobs == 1:
        for done, case in enumerate(ordered, 1):
            rows[case] = run_case(case)
            progress(done, len(ordered))
        return rows
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures: list[Future[Row]] = [pool.submit(run_case, case) for case in ordered]
        for done, future in enumerate(as_completed(futures), 1):
            rows[future.result().case] = future.result()
            progress(done, len(ordered))
    return rows


def capacity(rows: Sequence[Row]) -> float:
    """The highest load, in requests a second of one replica, up to which the objective is met: of
    rows of one fleet at rising loads, interpolated where the share falls below MET_SHARE. 0 if it
    is not met at the lowest."""
    ordered = sorted(rows, key=lambda row: row.case.rate)
    last = None
    for row in ordered:
        if row.met_share < MET_SHARE:
            if last is None:
                return 0.0
            part = (last.met_share - MET_SHARE) / (last.met_share - row.met_share)
            return last.case.rate + part * (row.case.rate - last.case.rate)
        last = row
    return last.case.rate if last else 0.0


def without(case: Case) -> dict[str, Case]:
    """The case as it is, and with one cause of loss less each time."""
    return {
        "as it is": case,
        "no failures": replace(case, failures=False),
        "demand the same at every hour": replace(case, diurnal=False),
        "one region": replace(case, num_regions=1),
        "reports every 5 ms": replace(case, report_s=0.005),
    }
