"""Runs the day under every policy, and reports what each costs and what users get.

    python -m bench.autoscale

Virtual time, so a busy machine only makes it take longer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Final, TypeAlias

import bench.autoscale
from bench.autoscale.policies import scrape_s
from bench.autoscale.study import (
    DRAIN_S,
    MAX_REPLICAS,
    OURS,
    POLICIES,
    TTFT_MS,
    Case,
    CaseResult,
    capacity,
    run_one,
    starts_s,
)
from bench.harness import Run, parser, spread, start
from bench.harness.parallel import run_all
from bench.scale.study import inputs

CORE_SHARE: Final = 0.5
QUICK_SHARE: Final = 0.2

Results: TypeAlias = Mapping[Case, CaseResult]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    starts_s: Sequence[float]
    seeds: Sequence[int]
    share: float = 1.0

    def of(self, start_s: float, policy: str) -> list[Case]:
        """Cases of a policy, seed by seed."""
        return [Case(policy, start_s, seed, self.share) for seed in self.seeds]

    @property
    def cases(self) -> list[Case]:
        """All of it."""
        pairs = product(self.starts_s, POLICIES)
        return [case for start_s, policy in pairs for case in self.of(start_s, policy)]


def report(run: Run, plan: Plan, results: Results) -> int:
    """Tables and figures; returns how many chats of ours were lost."""
    for start_s in plan.starts_s:
        rows = {policy: [results[case] for case in plan.of(start_s, policy)] for policy in POLICIES}
        _table(run, plan, start_s, rows)
        ours = rows[OURS]
        key = f"{start_s:g}"
        run.figures[f"replica_hours_{key}"] = _means(rows, "replica_hours")
        run.figures[f"met_share_{key}"] = _means(rows, "met_share")
        run.figures[f"lost_{key}"] = sum(it.num_lost for it in ours)
    return sum(
        result.num_lost + result.num_given_up
        for case, result in results.items()
        if case.policy == OURS
    )


def _means(rows: Mapping[str, Sequence[CaseResult]], field: str) -> dict[str, float]:
    return {
        policy: round(fmean(getattr(it, field) for it in found), 4)
        for policy, found in rows.items()
    }


def _table(run: Run, plan: Plan, start_s: float, rows: Mapping[str, Sequence[CaseResult]]) -> None:
    count = len(plan.seeds)
    table = run.table(
        f"A replica takes {start_s:g} s to start; mean (lowest to highest) of "
        f"{count} {'days' if count > 1 else 'day'}",
        *("policy", "replica-hours", "first token within 1 s", "TTFT p50, ms", "TTFT p95, ms"),
        *("TTFT p99, ms", "refused, then served", "refused for good", "lost"),
        *("moved", "woke a replica", "longest wait for it, s", "changes of the number"),
    )
    for policy, found in rows.items():
        table.add(
            *(policy, spread([it.replica_hours for it in found])),
            spread([it.met_share for it in found]),
            spread([it.ttft_p50_ms for it in found]),
            spread([it.ttft_p95_ms for it in found]),
            spread([it.ttft_p99_ms for it in found]),
            *(sum(it.num_delayed for it in found), sum(it.num_given_up for it in found)),
            *(sum(it.num_lost for it in found), sum(it.num_moves for it in found)),
            *(sum(it.num_woken for it in found), max(it.longest_wake_s for it in found)),
            sum(it.num_changes for it in found),
        )


def main() -> int:
    flags = parser("autoscale", bench.autoscale.__doc__ or "", core="half the chats, one seed")
    flags.add_argument("--seeds", type=int, default=2, help="runs of everything, each another day")
    flags.add_argument("--jobs", type=int, default=2, help="runs at a time")
    arguments = flags.parse_args()
    run = start("autoscale", arguments)
    if run.quick:
        plan = Plan(starts_s()[:1], (1,), QUICK_SHARE)
    elif run.core:
        plan = Plan(starts_s(), (1,), CORE_SHARE)
    else:
        plan = Plan(starts_s(), range(1, arguments.seeds + 1))
    run.setting("inputs", **inputs())
    run.setting(
        "all", seeds=list(plan.seeds), max_replicas=MAX_REPLICAS, scrape_s=scrape_s(),
        drain_s=DRAIN_S, objective_ms=TTFT_MS, replica_chats_per_s=round(capacity(), 3),
    )  # fmt: skip
    num_failed = report(run, plan, run_all(run_one, plan.cases, arguments.jobs))
    run.finish()
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
