"""Runs the study and reports."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import bench.scale
from bench.harness.figures import Cell, Run, parser, start
from bench.scale.study import (
    MET_SHARE,
    NUM_REGIONS,
    OBJECTIVE_MS,
    REPORT_S,
    Case,
    Row,
    capacity,
    run_all,
    without,
)

ALONE_RATES = (7.0, 7.5, 8.0, 8.5, 9.0, 10.0)
LOADS = {10: (7.0, 8.0, 9.0, 10.0), 100: (7.0, 8.0, 9.0, 10.0), 1000: (8.0, 10.0)}
"""Requests a second of one replica, by replicas of the fleet."""
TARGETS = {10: 0.85, 100: 0.75, 1000: 0.65}
FLOOR_RATES = (1.5, 5.0)
_SECONDS = {1: 240.0, 10: 60.0, 100: 24.0, 1000: 24.0}
_CAUSES_REPLICAS = 100
_CAUSES_RATE = 8.0


def main() -> int:
    flags = parser("scale", bench.scale.__doc__ or "")
    flags.add_argument("--jobs", type=int, default=2, help="runs at a time")
    flags.add_argument("--max-replicas", type=int, default=1000, help="largest fleet")
    arguments = flags.parse_args()
    run = start("scale", arguments)
    most = 10 if run.quick else arguments.max_replicas
    plan = _Plan([size for size in LOADS if size <= most], run.quick)
    begin = time.monotonic()

    def progress(done: int, count: int) -> None:
        print(f"{done} of {count} runs, {time.monotonic() - begin:.0f} s", file=sys.stderr)

    rows = run_all(plan.cases, arguments.jobs, progress)
    _report(run, plan, rows)
    run.finish()
    return int(any(row.num_failed for row in rows.values() if row.case.router == "outrider"))


class _Plan:
    """The cases, by what they are for."""

    def __init__(self, sizes: Sequence[int], quick: bool) -> None:
        scale = 0.25 if quick else 1.0
        self.alone = [
            Case(1, rate, scale * _SECONDS[1], failures=False)
            for rate in (ALONE_RATES[::2] if quick else ALONE_RATES)
        ]
        self.fleets = {
            size: [Case(size, rate, scale * _SECONDS[size]) for rate in LOADS[size]]
            for size in sizes
        }
        middle = min(_CAUSES_REPLICAS, sizes[-1])
        self.causes = without(Case(middle, _CAUSES_RATE, scale * _SECONDS[middle]))
        self.floors = [
            Case(middle, rate, scale * _SECONDS[middle], router=router)
            for rate in FLOOR_RATES
            for router in ("outrider", "outrider, behind admission", "least loaded", "round robin")
        ]

    @property
    def cases(self) -> list[Case]:
        """Each once."""
        fleets = [case for cases in self.fleets.values() for case in cases]
        return list(dict.fromkeys([*self.alone, *fleets, *self.causes.values(), *self.floors]))


def _report(run: Run, plan: _Plan, rows: dict[Case, Row]) -> None:
    one = capacity([rows[case] for case in plan.alone])
    _efficiency(run, plan, rows, one)
    title = "A fleet at rising loads"
    loads = run.table(title, "replicas", "regions", "requests/s each", *_COLUMNS)
    for cases in ([*plan.alone], *plan.fleets.values()):
        for case in cases:
            regions = NUM_REGIONS[case.num_replicas]
            loads.add(case.num_replicas, regions, case.rate, *_cells(rows[case]))
    _causes(run, plan, rows)
    middle = plan.floors[0].num_replicas
    floors = run.table(
        f"{middle} replicas, our router and floors", "router", "requests/s each", *_COLUMNS
    )
    for case in plan.floors:
        floors.add(case.router, case.rate, *_cells(rows[case]))
    run.figures |= {
        "objective_ttft_ms": OBJECTIVE_MS,
        "met_share": MET_SHARE,
        "requests_per_s_alone": round(one, 2),
        "failed": sum(row.num_failed for row in rows.values() if row.case.router == "outrider"),
    }


def _efficiency(run: Run, plan: _Plan, rows: dict[Case, Row], one: float) -> None:
    """A fleet's highest load over as many times that of one replica alone."""
    columns = ("replicas", "regions", "requests/s each", "goodput/s", "of linear", "aim")
    more = ("reports every, ms", "decision mean, ms", "p99", "sessions moved")
    table = run.table("Highest load at which 95% get their first token within 1 s", *columns, *more)
    efficiencies: dict[str, float] = {}
    for size, cases in plan.fleets.items():
        found = [rows[case] for case in cases]
        most = capacity(found)
        efficiencies[str(size)] = round(most / one, 3) if one else 0.0
        last = found[-1]
        decided = (us / 1000 for us in last.decision_us)
        report_ms = 1e3 * REPORT_S.get(size, 0.05)
        table.add(
            *(size, NUM_REGIONS[size], most, MET_SHARE * most * size, efficiencies[str(size)]),
            *(TARGETS[size], report_ms, *decided, sum(row.num_moves for row in found)),
        )
    run.figures["efficiency"] = efficiencies


def _causes(run: Run, plan: _Plan, rows: dict[Case, Row]) -> None:
    case = plan.causes["as it is"]
    title = f"What limits {case.num_replicas} replicas at {case.rate:g} requests/s each"
    table = run.table(title, "one cause less", *_COLUMNS)
    for name, variant in plan.causes.items():
        table.add(name, *_cells(rows[variant]))


_COLUMNS = (
    *("within 1 s", "TTFT p50, ms", "p90", "p99", "hit rate", "away"),
    *("requests", "deaths", "moved", "failed"),
)


def _cells(row: Row) -> tuple[Cell, ...]:
    return (
        *(round(row.met_share, 3), *row.ttft_ms, round(row.hit_rate, 3), round(row.away_share, 3)),
        *(row.num_requests, row.num_deaths, row.num_moves, row.num_failed),
    )


if __name__ == "__main__":
    sys.exit(main())
