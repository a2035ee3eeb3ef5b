"""Runs all cases, and reports each policy beside the omniscient placement.

    python -m bench.oracle

`--core` has two loads and one seed. Virtual time, so a busy machine only makes it take longer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Final, TypeAlias

import bench.oracle
from bench.harness import Run, parser, spread, start
from bench.harness.parallel import run_all
from bench.oracle.study import (
    ITL_MS,
    LOADS,
    NUM_REGIONS,
    NUM_REPLICAS,
    OMNISCIENT,
    OURS,
    POLICIES,
    SECONDS,
    TTFT_MS,
    WARM_S,
    WORK_PRICES,
    Case,
    CaseResult,
    capacity,
    run_one,
)
from bench.scale.study import inputs

CORE_LOADS: Final = ("0.8", "one region 2.0, others 0.3")
QUICK_REPLICAS: Final = 20
CHECKED_LOADS: Final = ("0.5", "0.8")
"""At which the model of a replica is held against the real scheduler, by a fleet of..."""
CHECKED_REPLICAS: Final = 20
AIM: Final = 0.95
"""Of the omniscient placement's goodput, set before anything was measured."""

Results: TypeAlias = Mapping[Case, CaseResult]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    loads: Sequence[str]
    seeds: Sequence[int]
    num_replicas: int = NUM_REPLICAS
    checked_loads: Sequence[str] = ()

    def of(self, load: str, policy: str) -> list[list[Case]]:
        """Cases of a policy seed by seed; of the omniscient placement several, of which the best
        counts."""
        prices = WORK_PRICES if policy == OMNISCIENT else WORK_PRICES[:1]
        return [
            [Case(load, policy, seed, price, self.num_replicas) for price in prices]
            for seed in self.seeds
        ]

    def checked(self, load: str) -> tuple[Case, Case]:
        """The same case with modelled and with real replicas."""
        case = Case(load, OURS, self.seeds[0], num_replicas=CHECKED_REPLICAS)
        return case, replace(case, real_replicas=True)

    @property
    def cases(self) -> list[Case]:
        """All of it, the longest first."""
        found = [case for load in self.checked_loads for case in reversed(self.checked(load))]
        for load, policy in product(self.loads, ALL):
            found += [case for cases in self.of(load, policy) for case in cases]
        return found


ALL: Final = (OMNISCIENT, *POLICIES)


def report(run: Run, plan: Plan, results: Results) -> int:
    """Tables and figures; returns how many requests of ours failed."""
    goodput: dict[str, float] = {}
    goodput_best: dict[str, float] = {}
    ttft: dict[str, float] = {}
    ttft_best: dict[str, float] = {}
    num_failed = 0
    for load in plan.loads:
        rows = {policy: _best(plan.of(load, policy), results) for policy in ALL}
        _table(run, plan, load, rows)
        ours, oracle = rows[OURS], rows[OMNISCIENT]
        others = [rows[policy] for policy in POLICIES if policy != OURS]
        goodput[load] = _ratio(_goodput(ours), _goodput(oracle))
        ttft[load] = _ratio(_ttft_p95(ours), _ttft_p95(oracle))
        goodput_best[load] = _ratio(_goodput(ours), max(map(_goodput, others)))
        ttft_best[load] = _ratio(_ttft_p95(ours), min(map(_ttft_p95, others)))
        num_failed += sum(it.num_failed for it in ours)
    _check(run, plan, results)
    run.figures.update(
        failed=num_failed,
        goodput_vs_omniscient=goodput,
        goodput_vs_best_other=goodput_best,
        ttft_p95_vs_omniscient=ttft,
        ttft_p95_vs_best_other=ttft_best,
    )
    return num_failed


def _best(seeds: Sequence[Sequence[Case]], results: Results) -> list[CaseResult]:
    """Seed by seed, the result with the most goodput and then the shortest first tokens."""
    return [
        max((results[case] for case in cases), key=lambda it: (it.goodput, -it.ttft_p95_ms))
        for cases in seeds
    ]


def _table(run: Run, plan: Plan, load: str, rows: Mapping[str, Sequence[CaseResult]]) -> None:
    table = run.table(
        f"Load {load}: {plan.num_replicas} replicas in {NUM_REGIONS} regions; mean (lowest to "
        f"highest) of {len(plan.seeds)} {'days' if len(plan.seeds) > 1 else 'day'}",
        *("policy", "met both objectives", "over the omniscient placement's"),
        *("TTFT p50, ms", "TTFT p95, ms", "time between tokens p95, ms", "prefix hit rate"),
        *("placed in another region", "requests", "failed"),
    )
    table.note(
        f"Objectives: first token within {TTFT_MS:g} ms, tokens {ITL_MS:g} ms apart at most in a "
        f"reply's mean. No placement has a TTFT p50 below "
        f"{fmean(it.least_ms for it in rows[OURS]):.0f} ms."
    )
    oracle = rows[OMNISCIENT]
    for policy, found in rows.items():
        ratios = [a.goodput / b.goodput for a, b in zip(found, oracle, strict=True)]
        table.add(
            *(policy, spread([it.goodput for it in found]), spread(ratios)),
            spread([it.ttft_p50_ms for it in found]),
            spread([it.ttft_p95_ms for it in found]),
            spread([it.itl_p95_ms for it in found]),
            spread([it.hit_rate for it in found]),
            spread([it.away_share for it in found]),
            *(sum(it.num_requests for it in found), sum(it.num_failed for it in found)),
        )


def _check(run: Run, plan: Plan, results: Results) -> None:
    if not plan.checked_loads:
        return
    table = run.table(
        f"The model of a replica beside the real scheduler: ours, {CHECKED_REPLICAS} replicas",
        *("load", "replicas", "met both objectives", "TTFT p50, ms", "TTFT p95, ms"),
        *("time between tokens p95, ms", "prefix hit rate"),
    )
    for load in plan.checked_loads:
        for case, name in zip(plan.checked(load), ("model", "scheduler"), strict=True):
            it = results[case]
            table.add(
                *(load, name, it.goodput, it.ttft_p50_ms, it.ttft_p95_ms, it.itl_p95_ms),
                it.hit_rate,
            )


def _goodput(rows: Sequence[CaseResult]) -> float:
    return fmean(it.goodput for it in rows)


def _ttft_p95(rows: Sequence[CaseResult]) -> float:
    return fmean(it.ttft_p95_ms for it in rows)


def _ratio(value: float, base: float) -> float:
    return round(value / base, 3)


def main() -> int:
    flags = parser("oracle", bench.oracle.__doc__ or "", core="two loads, one seed")
    flags.add_argument("--seeds", type=int, default=3, help="runs of everything, each another day")
    flags.add_argument("--jobs", type=int, default=2, help="runs at a time")
    arguments = flags.parse_args()
    run = start("oracle", arguments)
    if run.quick:
        plan = Plan(CORE_LOADS[:1], (1,), QUICK_REPLICAS)
    elif run.core:
        plan = Plan(CORE_LOADS, (1,))
    else:
        plan = Plan(tuple(LOADS), range(1, arguments.seeds + 1), checked_loads=CHECKED_LOADS)
    run.setting("inputs", **inputs())
    run.setting(
        "all", measured_s=SECONDS, warm_up_s=WARM_S, seeds=list(plan.seeds), aim=AIM,
        replica_requests_per_s=round(capacity(), 3),
    )  # fmt: skip
    num_failed = report(run, plan, run_all(run_one, plan.cases, arguments.jobs))
    run.finish()
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
