"""Which fault happens when."""

from __future__ import annotations

from itertools import islice, pairwise

from hypothesis import given
from hypothesis import strategies as st

from bench.chaos.schedule import PERIOD_S, PlannedFault, schedule

seeds = st.integers(0, 2**32 - 1)
kinds = st.lists(st.text(max_size=3), min_size=2, max_size=8, unique=True)


def first(seed: int, names: list[str], count: int) -> list[PlannedFault]:
    return list(islice(schedule(seed, names), count))


@given(seed=seeds, names=kinds)
def test_every_kind_comes_once_before_one_comes_again_and_never_twice_running(
    seed: int, names: list[str]
) -> None:
    faults = first(seed, names, 3 * len(names))
    for turn in range(3):
        part = faults[turn * len(names) : (turn + 1) * len(names)]
        assert sorted(it.kind for it in part) == sorted(names)
    assert all(before.kind != after.kind for before, after in pairwise(faults))


@given(seed=seeds, names=kinds)
def test_one_fault_a_period_that_ends_soon_after_the_next_begins(
    seed: int, names: list[str]
) -> None:
    for number, fault in enumerate(first(seed, names, 2 * len(names))):
        assert (fault.number, fault.at_s) == (number, number * PERIOD_S)
        assert 0 < fault.lasts_s < 2 * PERIOD_S
        assert fault.choose(range(3)) in range(3)


def test_a_seed_is_a_schedule() -> None:
    names = ["a", "b", "c", "d"]
    assert first(7, names, 40) == first(7, names, 40) != first(8, names, 40)
