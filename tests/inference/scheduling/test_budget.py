"""The cost model finds the line."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.scheduler.cost_model import CostModel


def test_starts_from_its_first_guess() -> None:
    cost = CostModel(8.0, 1.2)
    assert cost.predict_ms(10) == pytest.approx(20.0)


def test_finds_another_engines_line() -> None:
    cost, rng = CostModel(8.0, 1.2), random.Random(1)
    for _ in range(400):
        rows = rng.choice([2, 4, 8, 40, 128])
        cost.observe(rows, 20.0 + 0.3 * rows + rng.uniform(-0.5, 0.5))
    assert cost.fixed_ms == pytest.approx(20.0, rel=0.05)
    assert cost.row_ms == pytest.approx(0.3, rel=0.1)


def test_follows_a_machine_that_became_slower() -> None:
    cost = CostModel(8.0, 1.0)
    for step in range(300):
        rows = 2 + step % 30
        cost.observe(rows, 2.0 * (8.0 + rows))
    assert cost.predict_ms(10) == pytest.approx(36.0, rel=0.05)


def test_calls_of_one_size_keep_the_slope() -> None:
    cost = CostModel(8.0, 1.2)
    for _ in range(1000):
        cost.observe(2, 8.0 + 1.2 * 2)
    assert cost.row_ms == pytest.approx(1.2, rel=0.05)
    assert cost.predict_ms(2) == pytest.approx(10.4, rel=0.01)


def test_a_first_call_that_was_held_up_is_soon_forgotten() -> None:
    cost = CostModel(8.0, 1.2)
    cost.observe(39, 500.0)
    for _ in range(20):
        cost.observe(2, 10.4)
    assert cost.row_ms < 1.5 * 1.2
    assert cost.predict_ms(2) < 1.5 * 10.4


def test_an_engine_ten_times_slower_than_guessed_is_soon_known() -> None:
    cost = CostModel(8.0, 1.2)
    for step in range(40):
        rows = 2 + step % 30
        cost.observe(rows, 10 * (8.0 + 1.2 * rows))
    assert cost.predict_ms(10) == pytest.approx(200.0, rel=0.2)


def test_one_held_up_call_changes_little() -> None:
    cost = CostModel(8.0, 1.0)
    for step in range(100):
        cost.observe(2 + step % 20, 10.0 + step % 20)
    cost.observe(4, 5000.0)
    assert cost.predict_ms(4) < 15.0


@given(st.lists(st.tuples(st.integers(1, 600), st.floats(0.0, 5000.0)), max_size=40))
def test_costs_are_never_negative(calls: list[tuple[int, float]]) -> None:
    cost = CostModel(8.0, 1.2)
    for rows, duration_ms in calls:
        cost.observe(rows, duration_ms)
        assert cost.row_ms > 0.0
        assert cost.fixed_ms >= 0.0
