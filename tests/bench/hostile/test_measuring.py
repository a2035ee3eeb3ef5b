"""When an aim of an attack counts as missed."""

from __future__ import annotations

import pytest

from bench.harness import TOO_FEW, Run
from bench.hostile import leaving
from bench.hostile.bystander import Waits
from bench.hostile.catalog import ATTACKS, HTTP_ATTACKS, attack_of
from bench.hostile.measuring import AttackResult, report
from bench.hostile.target import Findings
from services.edge.http.routes import ALL_ROUTES

REFERENCES = ["one_honest_client", "three_honest_clients"]


def result_of(name: str, *, slower: float, num_words: int = 100) -> AttackResult:
    """The bystander waited `slower` times as long as in calm; all else was well."""
    attack = attack_of(name)
    result = AttackResult(attack, findings=Findings({attack.expects or "sent": 1}))
    for _ in range(2):
        calm = Waits([10.0], [20.0] * num_words, 1)
        result.add_waits({"native": calm}, {"native": Waits([9.0], [20 * slower] * num_words, 1)})
    return result


def test_every_attack_has_a_name_of_its_own_and_says_what_it_does() -> None:
    attacks = (*ATTACKS, *HTTP_ATTACKS)
    assert len({attack.name for attack in attacks}) == len(attacks)
    assert all(attack.sends for attack in attacks)
    assert [attack.name for attack in attacks if attack.is_reference] == REFERENCES


@pytest.mark.parametrize("name", REFERENCES)
def test_no_aim_holds_for_what_ordinary_use_costs_the_bystander(name: str) -> None:
    assert result_of(name, slower=4.0).misses(judges_times=True) == []
    (missed,) = result_of("many_chats", slower=4.0).misses(judges_times=True)
    assert "p95 was 4.0 times" in missed
    assert result_of("many_chats", slower=4.0).misses(judges_times=False) == []


def test_too_few_words_have_no_power_which_is_an_aim_missed() -> None:
    (missed,) = result_of("many_chats", slower=1.0, num_words=49).misses(judges_times=True)
    assert missed.startswith("no power")


def test_an_attack_that_is_not_answered_as_it_has_to_be_is_an_aim_missed() -> None:
    result = result_of("many_pings", slower=1.0)
    assert result.misses(judges_times=True) == []
    result.findings.done = {"sent": 5, "closed: something else": 1}
    assert result.misses(judges_times=True) == ["nothing was closed: too many frames"]
    result.findings.done = {}
    assert result.misses(judges_times=False) == ["nothing was done"]


def test_all_other_aims_hold_for_references_too() -> None:
    result = result_of("one_honest_client", slower=1.0)
    result.growth_mb, result.left = 100.0, {"edge-1 sessions": 1}
    result.attacked["native"].num_inexact = 1
    assert len(result.misses(judges_times=True)) == 3


def test_what_is_computed_for_nobody_is_an_aim_missed() -> None:
    for name, busy, count in (
        ("resets_everywhere", 0.06, 1),
        ("resets_everywhere", 0.05, 0),
        ("text_floods", 0.06, 0),
    ):
        result = result_of(name, slower=1.0)
        result.busy = busy
        assert len(result.misses(judges_times=False)) == count


def test_clients_leave_on_every_route_that_computes() -> None:
    assert set(leaving.routes("x")) == {route.path for route in ALL_ROUTES if route.is_limited}


def test_a_bystander_that_gets_no_words_is_judged_by_its_whole_wait() -> None:
    result = result_of("text_floods", slower=1.0)
    for slower in (3.0, 9.0):
        calm, attacked = Waits([10.0] * 100), Waits([10.0 * slower] * 100)
        result.add_waits({"texts": calm}, {"texts": attacked})
    assert result.ratios["texts"] == [3.0, 9.0]
    (missed,) = result.misses(judges_times=True)
    assert missed == "the texts bystander's p95 was 9.0 times that in calm"


def test_a_failure_of_the_edge_is_an_aim_missed_once() -> None:
    findings = Findings()
    for status in (200, 400, 501, 505, 500, 503, 500):
        findings.answered(status)
    assert len(findings.broken) == 2 and findings.done["answered 500"] == 2
    findings.answered(400, b"Traceback (most recent call last)")
    assert "traceback" in findings.broken[-1]


def test_ratios_are_told_by_round_and_a_tail_of_few_is_not() -> None:
    run = Run("hostile", quick=False, command="")
    report(run, [result_of("many_chats", slower=3.0), result_of("idle_connections", slower=1.0)])
    waits, held = run.tables
    assert waits.rows[0][-1] == "3.00 (3.00 to 3.00)"
    assert waits.rows[0][5] == 200 and TOO_FEW not in waits.rows[0]
    assert [row[-1] for row in held.rows] == [1, 0]
    assert run.figures["broken"] == [
        "many_chats: the native bystander's p95 was 3.0 times that in calm"
    ]
    run = Run("hostile", quick=False, command="")
    report(run, [result_of("many_chats", slower=1.0, num_words=9)])
    assert run.tables[0].rows[0][8] == TOO_FEW
