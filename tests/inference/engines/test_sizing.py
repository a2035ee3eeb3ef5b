"""The number of rows an engine computes: rounded, kept while that is cheap, foreseeable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.inference.engines.sizing import NO_SIZING, CallSize, SizingRule

RULE = SizingRule(quantum=4, resize_rows=8)
calls = st.lists(st.integers(1, 300), max_size=60)


def test_an_engine_that_does_not_care() -> None:
    size = CallSize(NO_SIZING)
    assert [size.take(n) for n in (1, 5, 2, 2)] == [1, 5, 2, 2]
    assert size.cost_rows(9) == 9


def test_one_row_stays_one_and_more_are_rounded_up() -> None:
    size = CallSize(RULE)
    assert [size.take(n) for n in (1, 1, 2, 5, 9)] == [1, 1, 4, 8, 12]


def test_a_size_is_kept_until_the_rent_exceeds_a_resize_there_and_back() -> None:
    size = CallSize(RULE)
    assert size.take(8) == 8
    assert [size.take(1) for _ in range(4)] == [8, 8, 1, 1]


def test_a_call_that_needs_the_size_ends_the_rent() -> None:
    size = CallSize(RULE)
    assert [size.take(n) for n in (8, 1, 1, 7, 1, 1, 1)] == [8, 8, 8, 8, 8, 8, 1]


def test_a_resize_costs_and_rows_within_the_size_do_not() -> None:
    size = CallSize(RULE)
    size.take(4)
    assert [size.cost_rows(n) for n in (1, 2, 4, 5)] == [4, 4, 4, 16]


@given(calls)
def test_a_call_fits_and_wastes_little(rows: list[int]) -> None:
    size = CallSize(RULE)
    for num_rows in rows:
        foreseen = size.peek(num_rows)
        taken = size.take(num_rows)
        assert taken == foreseen
        assert 0 <= taken - num_rows <= 2 * RULE.resize_rows


@given(calls)
def test_two_that_saw_the_same_calls_agree(rows: list[int]) -> None:
    engine, scheduler = CallSize(RULE), CallSize(RULE)
    assert [engine.take(n) for n in rows] == [scheduler.take(n) for n in rows]
