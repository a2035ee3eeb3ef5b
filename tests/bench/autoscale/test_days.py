"""Days under every policy, and the day itself."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from bench.autoscale.__main__ import Plan, report
from bench.autoscale.day import DAY_S, LONE_AT_S, asks, level
from bench.autoscale.study import (
    FORESIGHT,
    OURS,
    POLICIES,
    Case,
    CaseResult,
    run_case,
    starts_s,
)
from bench.harness.record import Run
from bench.oracle.replicas import Speed
from bench.scale.calls import CallTimes

SPEED = Speed(CallTimes({rows: [8.0 + 0.8 * rows] * 10 for rows in (2, 256)}, 0.05))
MORNING = Case(OURS, 20.0, 1, share=0.3, until_s=7.5 * 3600.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_all_and_a_day_is_repeatable(policy: str) -> None:
    case = Case(policy, MORNING.start_s, 1, MORNING.share, MORNING.until_s)
    found = run_case(case, SPEED)
    assert found.num_chats > 100
    assert found.num_lost == found.num_given_up == 0
    assert 0 < found.replica_hours and 0 < found.met_share <= 1
    assert found == run_case(case, SPEED)


def test_the_lone_chat_of_the_night_wakes_a_replica_for_ours_and_waits_about_a_start() -> None:
    found = run_case(Case(OURS, 20.0, 1, 0.3, 5.0 * 3600.0), SPEED)
    assert (found.num_chats, found.num_woken, found.num_lost) == (1, 1, 0)
    assert 20.0 < found.longest_wake_s < 20.0 + 5.0 + 5.0 + 5.0 + 2.0
    assert 10 / 60 < found.replica_hours < 20 / 60, "gone again once it was idle for long enough"


def test_foresight_has_it_ready() -> None:
    found = run_case(Case(FORESIGHT, 20.0, 1, 0.3, 5.0 * 3600.0), SPEED)
    assert (found.num_woken, found.met_share) == (0, 1.0)


def test_a_day_is_quiet_at_night_and_crowded_at_noon() -> None:
    found = [*asks(1)]
    assert all(a.at <= b.at for a, b in pairwise(found))
    assert [it.number for it in found] == [*range(1, len(found) + 1)]
    hours = Counter(int(it.at // 3600) for it in found)
    assert sum(hours[hour] for hour in range(6)) == 1
    assert abs(found[0].at - LONE_AT_S) <= 1800.0
    assert level(12 * 3600.0 + 60.0) == pytest.approx(4 * level(12 * 3600.0))
    assert hours[12] > 2.5 * hours[11]
    assert level(0.0) == level(DAY_S) == 0.0
    assert found[0].at != next(asks(2)).at


def result(case: Case) -> CaseResult:
    hours, num_lost = 3.0 + case.seed, case.seed
    return CaseResult(case, 9, hours, 0.9, 1.0, 2.0, 3.0, 0, 0, num_lost, 0, 0, 0.0, 0)


def test_the_last_line_has_hours_and_shares(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = Plan((6.0, 120.0), (1, 2))
    results = {case: result(case) for case in plan.cases}
    run = Run("autoscale", quick=True, command="")
    assert report(run, plan, results) == 6
    run.finish(tmp_path)
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["replica_hours_6"][OURS] == 4.5
    assert said["met_share_120"][OURS] == 0.9
    assert said["lost_6"] == 3
    assert [row[0] for row in run.tables[1].rows] == list(POLICIES)


def test_a_start_takes_what_was_recorded() -> None:
    fast_s, slow_s = starts_s()
    assert 1.0 < fast_s < slow_s
