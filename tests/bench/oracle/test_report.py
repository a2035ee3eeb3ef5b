"""What a run says in the end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.harness.record import Run
from bench.oracle.__main__ import ALL, Plan, report
from bench.oracle.study import OMNISCIENT, OURS, Case, CaseResult, replica_capacity, run_case
from bench.scale.calls import CallTimes

TIMES = CallTimes({rows: [8.0 + 0.8 * rows] * 10 for rows in (2, 256)}, 0.05)
SMALL = Case("0.5", OURS, 1, num_replicas=10, seconds=2.0, warm_s=4.0)


def result(case: Case, goodput: float, ttft_p95_ms: float, num_failed: int = 0) -> CaseResult:
    return CaseResult(case, 100, goodput, 50.0, ttft_p95_ms, 40.0, 0.9, 0.1, num_failed, 20.0)


def test_the_last_line_holds_ours_against_the_omniscient_and_the_best_other(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = Plan(("0.8",), (1, 2), checked_loads=("0.5",))
    results = {case: result(case, 0.5, 400.0) for case in plan.cases}
    for cases in plan.of("0.8", OMNISCIENT):
        first, second = cases
        results[first] = result(first, 0.9, 100.0)
        results[second] = result(second, 1.0, 200.0)
    for (case,) in plan.of("0.8", OURS):
        results[case] = result(case, 0.98, 150.0, num_failed=case.seed)
    run = Run("oracle", quick=True, command="")
    assert report(run, plan, results) == 3
    run.finish(tmp_path)
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["goodput_vs_omniscient"] == {"0.8": 0.98}, "by the price that served most"
    assert said["ttft_p95_vs_omniscient"] == {"0.8": 0.75}
    assert said["goodput_vs_best_other"] == {"0.8": 1.96}
    assert said["ttft_p95_vs_best_other"] == {"0.8": 0.375}
    assert said["failed"] == 3
    assert [row[0] for row in run.tables[0].rows] == list(ALL)
    assert [row[1] for row in run.tables[1].rows] == ["model", "scheduler"]


@pytest.mark.parametrize("policy", ALL)
def test_every_policy_serves_all_and_a_case_is_repeatable(policy: str) -> None:
    case = replace(SMALL, policy=policy)
    found = run_case(case, TIMES, replica_capacity(TIMES, 200))
    assert found.num_requests > 50
    assert found.num_failed == 0
    assert found.least_ms <= found.ttft_p50_ms <= found.ttft_p95_ms
    assert 0 < found.hit_rate < 1
    assert found == run_case(case, TIMES, replica_capacity(TIMES, 200))
