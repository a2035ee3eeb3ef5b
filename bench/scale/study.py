"""The runs of a study: one day for lone replicas and for fleets of every size, seed by seed.

Every day has the same length and the same peak. The highest load that a fleet serves is searched
for: load rises or falls by steps until one of two neighbouring loads meets the objective and the
other one misses it; the highest load is interpolated between them.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed  # noqa: TID251 - spawned
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context  # noqa: TID251 - spawn does not fork
from typing import TypeAlias

from bench.harness import RESULTS, quantile
from bench.scale import calls
from bench.scale.demand import GROUPS_PER_REPLICA, Ask, Demand
from bench.scale.fleet import Fleet, FleetResult, FleetSetup, MakeRouter
from bench.scale.regions import REGIONS, Region
from bench.scale.routers import MeshRouter, RoundRobin, Router

OBJECTIVE_MS = 1000.0
"""The router's own default for sessions of the middle class (AdmissionPolicy)."""
MET_SHARE = 0.95
"""A fleet serves a load if at least this share of its requests meets the objective."""
WARM_S = 12.0
"""Seconds before the day in which each group is asked once: about as busy as the day itself."""
DAY_S = 24.0
"""Length of the day that is measured, for lone replicas and for fleets alike. Short, for a thousand
replicas' sake: the evening's peak is some eight seconds, in which no long queue can gather."""
NUM_REGIONS = {1: 1, 10: 2, 100: 6, 1000: 12}
REPORT_S = {1000: 0.25}
"""Where it is not the router's default of 50 ms: 20,000 reports a second are more than one router
process reads."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    num_replicas: int
    rate: float
    """Requests a second of one replica, on average."""
    seconds: float = DAY_S
    """Of the day that is measured."""
    router: str = "outrider"
    failures: bool = True
    diurnal: bool = True
    num_apart: int = 1
    """Number of such fleets, each with demand and deaths of its own, whose requests are counted
    together. Lone replicas are run so: one alone has too few requests to tell 95 % from 94 %."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Search:
    """Runs of one fleet at different loads, to find the highest at which it meets the objective."""

    case: Case
    """At the load that is tried first."""
    step: float = 1.06
    """Factor between loads, until one meets the objective and the next one does not."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case: over the measured day's requests alone, but for deaths and moves,
    which include the warm-up."""

    case: Case
    num_requests: int
    num_failed: int
    """Requests without a whole reply at the end."""
    met_share: float
    """Of the requests: whole, and their first token within the objective."""
    ttft_ms: tuple[float, float, float]
    """p50, p90, p99."""
    hit_rate: float
    """Cached tokens over prompt tokens."""
    away_share: float
    """Placed outside of their region at first."""
    num_deaths: int
    num_moves: int
    all_ttft_ms: tuple[float, ...] = ()
    """Of every request that got its whole reply."""


def run_case(case: Case) -> CaseResult:
    """Run it. The same case gives the same row."""
    return _row(case, [_outcome(part, _ROUTERS[case.router]) for part in _apart(case)])


def _apart(case: Case) -> list[Case]:
    """The fleets of a case, each with a seed that no other one of the study has."""
    if case.num_apart == 1:
        return [case]
    seeds = (_SEEDS_APART * case.seed + number for number in range(case.num_apart))
    return [replace(case, num_apart=1, seed=seed) for seed in seeds]


_SEEDS_APART = 1000


def _outcome(case: Case, make_router: MakeRouter) -> FleetResult:
    fleet = Fleet(_setting(case), calls.recorded(), make_router)
    with _uncollected():
        return fleet.run(_demand(case).asks())


def run_search(
    search: Search, run: Callable[[Case], CaseResult] = run_case
) -> tuple[CaseResult, ...]:
    """All its runs; `capacity` reads the answer from them. A load at which a fleet never meets the
    objective, or always does, is not looked for beyond MOST_TRIES."""
    rows = [run(search.case)]
    rose = rows[0].met_share >= MET_SHARE
    factor = search.step if rose else 1 / search.step
    while (rows[-1].met_share >= MET_SHARE) == rose and len(rows) < MOST_TRIES:
        rows.append(run(replace(search.case, rate=rows[-1].case.rate * factor)))
    return tuple(rows)


MOST_TRIES = 8


@contextmanager
def _uncollected() -> Iterator[None]:
    """A large fleet is millions of objects that live to the end; looking through them again and
    again for cycles, of which there are hardly any, took most of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _setting(case: Case) -> FleetSetup:
    return FleetSetup(
        _regions(case),
        case.num_replicas,
        report_s=REPORT_S.get(case.num_replicas, 0.05),
        mtbf_s=MTBF_S if case.failures else 0.0,
        seed=case.seed,
    )


def inputs() -> dict[str, object]:
    """The records that times are drawn from: when they were made, and from which commit."""
    found: dict[str, object] = {}
    for name in ("calls", "tick"):
        record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        found[name] = {"date": record["machine"]["date"], "commit": record.get("commit")}
    return found


def _demand(case: Case) -> Demand:
    return Demand(
        _regions(case),
        case.rate * case.num_replicas,
        case.seconds,
        num_groups=GROUPS_PER_REPLICA * case.num_replicas,
        seed=case.seed,
        warm_s=WARM_S,
        diurnal=case.diurnal,
    )


MTBF_S = 1200.0
"""A replica dies once in twenty minutes on average: with 10 s until another stands there, some one
in a hundred is away at any time."""


def _regions(case: Case) -> Sequence[Region]:
    usual = max(count for size, count in NUM_REGIONS.items() if size <= case.num_replicas)
    return REGIONS[:usual]


_ROUTERS: dict[str, Callable[[Region, Sequence[Region], int], Router]] = {
    "outrider": MeshRouter,
    "round robin": lambda own, regions, seed: RoundRobin(own.name),
}


def _row(case: Case, outcomes: Sequence[FleetResult]) -> CaseResult:
    num_warm = GROUPS_PER_REPLICA * case.num_replicas
    asks = [ask for outcome in outcomes for ask in outcome.asks if ask.number > num_warm]
    whole = [ask for ask in asks if ask.ended_at]
    met = sum(ask.ttft_ms <= OBJECTIVE_MS for ask in whole)
    ttft_ms = [ask.ttft_ms for ask in whole] or [0.0]
    return CaseResult(
        case,
        num_requests=len(asks),
        num_failed=len(asks) - len(whole),
        met_share=met / max(1, len(asks)),
        ttft_ms=(quantile(ttft_ms, 0.5), quantile(ttft_ms, 0.9), quantile(ttft_ms, 0.99)),
        hit_rate=_hit_rate(asks),
        away_share=sum(ask.began_away for ask in asks) / max(1, len(asks)),
        num_deaths=sum(outcome.num_deaths for outcome in outcomes),
        num_moves=sum(outcome.num_moves for outcome in outcomes),
        all_ttft_ms=tuple(ask.ttft_ms for ask in whole),
    )


def _hit_rate(asks: Sequence[Ask]) -> float:
    return sum(ask.cached_tokens for ask in asks) / max(1, sum(len(ask.prompt) for ask in asks))


Task: TypeAlias = Case | Search


def run_task(task: Task) -> tuple[CaseResult, ...]:
    """One run of a case, or all those of a search."""
    rows = run_search(task) if isinstance(task, Search) else (run_case(task),)
    gc.collect()  # before the next one of this process
    return rows


def run_all(
    tasks: Sequence[Task], jobs: int, progress: Callable[[float], None]
) -> dict[Task, tuple[CaseResult, ...]]:
    """Every task once, several at a time in processes of their own, the longest first; `progress`
    hears which share of the work is done, by a rough reckoning."""
    rows: dict[Task, tuple[CaseResult, ...]] = {}
    ordered = sorted(dict.fromkeys(tasks), key=_work, reverse=True)
    whole = sum(map(_work, ordered))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures: dict[Future[tuple[CaseResult, ...]], Task] = {
            pool.submit(run_task, task): task for task in ordered
        }
        for future in as_completed(futures):
            rows[futures[future]] = future.result()
            progress(sum(map(_work, rows)) / whole)
    return rows


def _work(task: Task) -> float:
    """About how long it takes, in no unit."""
    case, runs = (task.case, 3) if isinstance(task, Search) else (task, 1)
    return runs * case.num_replicas * case.num_apart * case.rate * case.seconds


def capacity(rows: Sequence[CaseResult]) -> float:
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
