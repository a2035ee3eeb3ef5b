"""The timing attack: what it takes for a verdict."""

from __future__ import annotations

import pytest

from bench.hostile.timing import NUM_PAIRS, OWNER, STRANGER, Compared, misses


def test_the_chance_is_that_of_a_fair_coin() -> None:
    assert Compared(10, 10).chance == 2**-10
    assert Compared(60, 0).chance == 1.0
    assert Compared(60, 43).chance < 0.001 < Compared(60, 42).chance


@pytest.mark.parametrize(
    ("owner", "stranger", "missed"),
    [
        (Compared(60, 60), Compared(60, 30), ""),
        (Compared(60, 60), Compared(60, 55), "another's prompt came sooner"),
        (Compared(60, 33), Compared(60, 30), "no power: not even"),
        (Compared(60, 60), Compared(59, 30), "no power: a stranger compared 59"),
    ],
)
def test_no_power_is_an_aim_missed(owner: Compared, stranger: Compared, missed: str) -> None:
    found = misses({OWNER: owner, STRANGER: stranger})
    assert len(found) == bool(missed)
    assert all(it.startswith(missed) for it in found)
    assert NUM_PAIRS == 60
