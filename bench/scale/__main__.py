"""Plans the study, runs it and reports.

`--core` has fleets of 10 and 100 and takes minutes; without it there is one of 1,000 as well, and
round robin is compared with 100 replicas in place of 10, which takes hours. `--thousand` has the
fleet of 1,000 alone, for one day.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import bench.scale
from bench.harness import TOO_FEW, Cell, Run, parser, spread, start
from bench.harness.statistics import num_needed
from bench.scale.bound import most_of_linear
from bench.scale.demand import GROUPS_PER_REPLICA
from bench.scale.regions import REGIONS
from bench.scale.study import (
    DAY_S,
    MET_SHARE,
    MTBF_S,
    NUM_REGIONS,
    OBJECTIVE_MS,
    REPORT_S,
    WARM_S,
    Case,
    CaseResult,
    Search,
    Task,
    capacity,
    inputs,
    run_all,
)

SIZES = (10, 100, 1000)
CORE_SIZES = (10, 100)
AIMS = {10: 0.85, 100: 0.75, 1000: 0.65}
"""Of linear, set before anything was measured."""
NUM_ALONE = 10
"""Lone replicas of a seed, counted together: as many requests as a fleet of ten has."""
FLAT, SAME_DAY = "alone, demand the same at every hour", "alone"
_FIRST_RATES = {FLAT: 18.0, SAME_DAY: 13.0, 10: 13.0, 100: 15.0, 1000: 14.0}
"""Requests a second of one replica that a search begins with; near the answer, it is short."""
FLOOR_RATES = (1.5, 5.0)
FLOORS = ("outrider", "round robin")

Rows = Mapping[Task, Sequence[CaseResult]]


def main() -> int:
    flags = parser("scale", bench.scale.__doc__ or "", core="fleets of 10 and 100 alone")
    flags.add_argument("--seeds", type=int, default=3, help="runs of everything, each another day")
    flags.add_argument("--jobs", type=int, default=2, help="runs at a time")
    flags.add_argument("--thousand", action="store_true", help="the fleet of 1,000, for one day")
    arguments = flags.parse_args()
    run = start("scale_thousand" if arguments.thousand else "scale", arguments)
    if arguments.thousand:
        plan = Plan(SIZES[-1:], range(1, 2), DAY_S, middle=0)
    elif run.quick:
        plan = Plan(CORE_SIZES[:1], range(1, 3), DAY_S / 3, middle=10)
    else:
        sizes = CORE_SIZES if run.core else SIZES
        middle = 10 if run.core else 100
        plan = Plan(sizes, range(1, arguments.seeds + 1), DAY_S, middle)
    begin = time.monotonic()

    def progress(share: float) -> None:
        took_s = time.monotonic() - begin
        left_s = took_s * (1 / share - 1)
        print(f"{share:.0%} after {took_s:.0f} s, about {left_s:.0f} s to go", file=sys.stderr)

    run.setting("inputs", **inputs())
    rows = run_all(plan.tasks, arguments.jobs, progress)
    report(run, plan, rows)
    run.finish()
    return int(bool(run.figures["failed"]))


class Plan:
    """What is run, by what it is for; each for every seed, in the order of the seeds."""

    def __init__(
        self, sizes: Sequence[int], seeds: Sequence[int], day_s: float, middle: int
    ) -> None:
        """`middle`: replicas of the fleet that is compared with round robin; 0: none is."""
        self.sizes = sizes
        self.seeds = seeds
        self.middle = middle
        lone = Case(1, _FIRST_RATES[SAME_DAY], day_s, failures=False)
        by_name: dict[str | int, Case] = {
            FLAT: replace(lone, diurnal=False, num_apart=NUM_ALONE),
            SAME_DAY: replace(lone, num_apart=NUM_ALONE),
        }
        by_name |= {size: Case(size, 0.0, day_s) for size in sizes}
        self.searches = {
            name: [Search(replace(case, rate=_FIRST_RATES[name], seed=seed)) for seed in seeds]
            for name, case in by_name.items()
        }
        self.floors = {
            (router, rate): [Case(middle, rate, day_s, router, seed=seed) for seed in seeds]
            for rate in FLOOR_RATES
            for router in FLOORS
            if middle
        }

    @property
    def tasks(self) -> list[Task]:
        """All of it."""
        tasks: list[Task] = [one for group in self.searches.values() for one in group]
        return tasks + [case for group in self.floors.values() for case in group]


def report(run: Run, plan: Plan, rows: Rows) -> None:
    """Adds the tables; the figure is how many of our requests failed."""
    _efficiency(run, plan, rows)
    if plan.floors:
        title = f"{plan.middle} simulated replicas: our router and round robin"
        floors = run.table(title, "router", "requests/s per replica", *_COLUMNS)
        for (router, rate), cases in plan.floors.items():
            floors.add(router, rate, *_cells([rows[case][0] for case in cases]))
    ours = [row for found in rows.values() for row in found if row.case.router == "outrider"]
    run.setting(
        "all",
        day_s=plan.searches[SAME_DAY][0].case.seconds,
        warm_up_s=WARM_S,
        groups_per_replica=GROUPS_PER_REPLICA,
        seeds=list(plan.seeds),
    )
    run.setting("lone replicas", num_counted_together=NUM_ALONE, deaths=False)
    run.setting("fleets", mean_time_to_death_s=MTBF_S, reports_every_s={10: 0.05} | REPORT_S)
    run.figures["failed"] = sum(row.num_failed for row in ours)


def _efficiency(run: Run, plan: Plan, rows: Rows) -> None:
    """The highest load each fleet bears, over that of the strongest lone replica."""
    found = {
        name: [capacity(rows[search]) for search in searches]
        for name, searches in plan.searches.items()
    }
    best = [max(pair) for pair in zip(found[FLAT], found[SAME_DAY], strict=True)]
    table = run.table(
        f"Simulated fleets: highest load at which {MET_SHARE:.0%} of requests get their first "
        f"token within {OBJECTIVE_MS / 1e3:g} s; mean (lowest to highest) of {len(plan.seeds)} "
        f"{'days' if len(plan.seeds) > 1 else 'day'}",
        "fleet",
        "regions",
        "requests/s per replica",
        "share of linear",
        "the most that any placement could reach",
        "aim",
        "share of lone replicas, same day",
        "reports every, ms",
    )
    for name, rates in found.items():
        run.samples(f"{_fleet(name)}: load borne, by seed", rates, unit="requests/s")
        for search in plan.searches[name]:
            near = _nearest(rows[search])
            label = f"{_fleet(name)}, seed {near.case.seed}, {near.case.rate:.2f} requests/s: TTFT"
            run.samples(label, near.all_ttft_ms, unit="ms")
        linear = _ratios(rates, best)
        over_same = _ratios(rates, found[SAME_DAY])
        reports_ms: Cell = "-"
        if isinstance(name, int):
            reports_ms = 1e3 * REPORT_S.get(name, 0.05)
        table.add(
            _fleet(name),
            NUM_REGIONS[name] if isinstance(name, int) else 1,
            spread(rates),
            spread(linear),
            _most(plan.searches[name][0].case),
            AIMS[name] if isinstance(name, int) else "-",
            spread(over_same),
            reports_ms,
        )


def _most(case: Case) -> float:
    """Of linear, on the day of a case."""
    if not case.diurnal:
        return 1.0
    regions = REGIONS[: NUM_REGIONS[case.num_replicas]]
    return most_of_linear(
        regions, case.seconds, objective_s=OBJECTIVE_MS / 1e3, met_share=MET_SHARE
    )


def _nearest(rows: Sequence[CaseResult]) -> CaseResult:
    """The run that came nearest to the load that its fleet just bears."""
    return min(rows, key=lambda row: abs(row.met_share - MET_SHARE))


def _ratios(rates: Sequence[float], bases: Sequence[float]) -> list[float]:
    """Seed by seed; 0 where a base was not found."""
    return [rate / base if base else 0.0 for rate, base in zip(rates, bases, strict=True)]


def _fleet(name: str | int) -> str:
    return f"{name:,} replicas" if isinstance(name, int) else name


_COLUMNS = (
    *("first token within 1 s", "TTFT p50, ms", "p90", "p99", "prefix hit rate"),
    "placed in another region",
    *("requests", "replica deaths", "sessions moved", "failed"),
)


def _cells(rows: Sequence[CaseResult]) -> tuple[Cell, ...]:
    """Of one case with several seeds: means and ranges of shares and times, sums of counts."""
    p50, p90, p99 = (list(ms) for ms in zip(*(row.ttft_ms for row in rows), strict=True))
    enough = min(row.num_requests for row in rows) >= num_needed(0.99)
    return (
        spread([row.met_share for row in rows]),
        spread(p50),
        spread(p90),
        spread(p99) if enough else TOO_FEW,
        spread([row.hit_rate for row in rows]),
        spread([row.away_share for row in rows]),
        sum(row.num_requests for row in rows),
        sum(row.num_deaths for row in rows),
        sum(row.num_moves for row in rows),
        sum(row.num_failed for row in rows),
    )


if __name__ == "__main__":
    sys.exit(main())
