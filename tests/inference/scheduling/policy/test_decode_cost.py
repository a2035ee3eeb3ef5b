"""The line near the sizes that decoding calls have."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.sizing import SizingRule
from services.inference.scheduler.decode_cost import DecodeCost


def test_starts_from_the_first_guess() -> None:
    assert DecodeCost(8.0, 1.2).price_ms(10) == pytest.approx(20.0)


def test_finds_the_slope_near_the_sizes_seen() -> None:
    """Flat up to 8 rows, steep above: between 12 and 16 rows the steep part counts."""
    cost, rng = DecodeCost(8.0, 1.2), random.Random(1)
    for _ in range(200):
        rows = rng.randint(12, 16)
        cost.observe(rows, 10.0 + 2.0 * (rows - 8) + rng.uniform(-0.2, 0.2), 0.5)
    assert cost.row_ms == pytest.approx(2.0, rel=0.15)
    assert cost.price_ms(14) == pytest.approx(22.0, rel=0.02)


def test_calls_of_one_size_go_by_the_expected_slope() -> None:
    cost = DecodeCost(8.0, 1.2)
    for _ in range(300):
        cost.observe(8, 20.0, 0.7)
    assert cost.row_ms == pytest.approx(0.7)
    assert cost.price_ms(8) == pytest.approx(20.0)


def test_the_more_sessions_the_likelier_a_draft_must_be_to_be_looked_for() -> None:
    cost = DecodeCost(9.0, 1.0)
    least = [cost.least_survival(num_sessions) for num_sessions in (0, 1, 9, 200)]
    assert least == [0.01, pytest.approx(0.1), pytest.approx(0.5), 0.6]


def test_calls_far_below_those_seen_are_taken_to_cost_in_proportion() -> None:
    """The line, a guess there, would say that rows are nearly free."""
    cost = DecodeCost(8.0, 1.2)
    for _ in range(100):
        cost.observe(8, 40.0, 0.1)
    at_half = cost.fixed_ms + cost.row_ms * 4
    assert at_half > 39.0
    shares = [cost.price_ms(rows) / at_half for rows in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1.0])
    cost.observe(1, 5.5, 0.1)
    assert cost.price_ms(1) == pytest.approx(cost.fixed_ms + cost.row_ms)


def test_padding_is_free() -> None:
    cost = DecodeCost(8.0, 1.0, SizingRule(quantum=4))
    assert cost.price_ms(5) == cost.price_ms(8) == pytest.approx(16.0)
    assert cost.free_rows(5) == 8


def test_a_call_that_was_held_up_changes_little() -> None:
    cost = DecodeCost(8.0, 1.0)
    for step in range(100):
        cost.observe(8 + step % 5, 16.0 + step % 5, 1.0)
    cost.observe(8, 5000.0, 1.0)
    assert cost.price_ms(8) < 17.0


@given(st.lists(st.tuples(st.integers(1, 600), st.floats(0.0, 5000.0)), max_size=40))
def test_costs_are_never_negative(calls: list[tuple[int, float]]) -> None:
    cost = DecodeCost(8.0, 1.2)
    for rows, duration_ms in calls:
        cost.observe(rows, duration_ms, 1.2)
        assert 0.0 < cost.price_ms(1) <= cost.price_ms(8)
