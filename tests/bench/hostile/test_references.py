"""Ordinary use beside a bystander: the yardstick for attacks, not judged as one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.harness import Run
from bench.hostile import __main__ as hostile
from bench.hostile.bystander import Waits
from bench.hostile.catalog import ATTACKS, attack_of
from bench.hostile.measuring import MAX_TAIL_RATIO, AttackResult
from bench.hostile.neighbours import prompt

REFERENCES = ["one_honest_client", "four_honest_clients"]


def result_of(name: str, *, slower: float) -> AttackResult:
    """The bystander waited `slower` times as long as in calm; all else was well."""
    calm, attacked = (Waits([10.0 * by, 20.0 * by] * 50, 1) for by in (1.0, slower))
    inference = {"inference-1": 1.0}
    return AttackResult(
        attack_of(name), calm, attacked, inference, 1.0, inference, inference, {}, 0, []
    )


def test_the_references_come_first_and_are_the_only_ones() -> None:
    assert [attack.name for attack in ATTACKS if attack.is_reference] == REFERENCES
    assert [attack.name for attack in ATTACKS[:2]] == REFERENCES


@pytest.mark.parametrize("name", REFERENCES)
def test_no_aim_holds_for_what_ordinary_use_costs_the_bystander(name: str) -> None:
    assert result_of(name, slower=2 * MAX_TAIL_RATIO).misses == []
    (missed,) = result_of("many_chats", slower=2 * MAX_TAIL_RATIO).misses
    assert "p95 was 4.0 times" in missed


def test_all_other_aims_hold_for_references_too() -> None:
    result = replace(
        result_of("one_honest_client", slower=1.0),
        growth_mb={"edge-1": 100.0},
        leaks={"edge-1 sessions": 1},
    )
    assert len(result.misses) == 2


def test_the_figures_have_ordinary_use_apart_from_attacks() -> None:
    run = Run("hostile", quick=True, command="")
    hostile.report(
        run, [result_of("four_honest_clients", slower=5.0), result_of("many_chats", slower=1.5)]
    )
    assert run.figures["honest_p95_ratio"] == {"four_honest_clients": 5.0}
    assert run.figures["bystander_p95_ratio"] == 1.5
    assert run.figures["broken"] == []


def test_honest_clients_ask_something_of_their_own() -> None:
    prompts = [prompt(number) for number in range(5)]
    assert all(len(text.split()) == 300 for text in prompts)
    assert len({text.split()[0] for text in prompts}) == 5
