"""The cost model finds the line; the rows go to the drafts that pay."""

from __future__ import annotations

import math
import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.engines.sizing import SizingRule
from services.inference.scheduling.budget import Bid, CostModel, admit_drafts

SURVIVAL = st.lists(st.floats(0.0, 1.0), max_size=4).map(lambda s: sorted(s, reverse=True))


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


def test_a_cheap_row_takes_an_unlikely_draft_and_a_dear_row_does_not() -> None:
    bids = [Bid([0.3, 0.1])]
    assert admit_drafts(bids, 1, 100, CostModel(10.0, 0.1)) == [2]
    assert admit_drafts(bids, 1, 100, CostModel(1.0, 10.0)) == [0]


def test_paid_rows_are_used_whatever_the_odds() -> None:
    assert admit_drafts([Bid([0.01, 0.01], 1)], 2, 100, CostModel(0.0, 1.0)) == [1]
    assert admit_drafts([Bid([], 1)], 2, 100, CostModel(0.0, 1.0)) == [0]


def test_the_likeliest_drafts_of_all_sessions_come_first() -> None:
    bids = [Bid([0.9, 0.2]), Bid([0.8, 0.7]), Bid([0.1])]
    assert admit_drafts(bids, 3, 6, CostModel(100.0, 0.01)) == [1, 2, 0]


def test_nobody_bids() -> None:
    assert admit_drafts([], 0, 10, CostModel(8.0, 1.0)) == []


@given(st.lists(SURVIVAL, min_size=1, max_size=3), st.floats(0.1, 20.0), st.floats(0.01, 5.0))
def test_no_other_choice_has_a_better_geometric_mean_of_commits_per_millisecond(
    survivals: list[list[float]], fixed_ms: float, row_ms: float
) -> None:
    cost = CostModel(fixed_ms, row_ms)
    bids = [Bid(survival) for survival in survivals]

    def fairness(counts: tuple[int, ...]) -> float:
        means = (1.0 + sum(s[:n]) for s, n in zip(survivals, counts, strict=True))
        return math.prod(means) / cost.predict_ms(len(bids) + sum(counts)) ** len(bids)

    chosen = tuple(admit_drafts(bids, len(bids), 100, cost))
    best = max(map(fairness, product(*(range(len(s) + 1) for s in survivals))))
    assert fairness(chosen) == pytest.approx(best)


def test_those_who_repeat_themselves_hardly_slow_down_those_who_do_not() -> None:
    cost = CostModel(8.0, 1.2)
    counts = admit_drafts([Bid([0.95] * 8)] * 4 + [Bid([])] * 4, 8, 500, cost)
    assert min(counts[:4]) >= 1
    assert cost.predict_ms(8 + sum(counts)) < 1.6 * cost.predict_ms(8)


@given(st.lists(SURVIVAL, min_size=1, max_size=4), st.integers(0, 12))
def test_stays_within_the_rows(survivals: list[list[float]], max_rows: int) -> None:
    bids = [Bid(survival) for survival in survivals]
    counts = admit_drafts(bids, len(bids), max_rows, CostModel(50.0, 0.001))
    assert sum(counts) <= max(0, max_rows - len(bids))


def test_drafts_fill_a_size_the_engine_has_and_do_not_force_another() -> None:
    """Rows up to the last call's size are free, a resize costs: a weak third draft is taken
    along, the fourth is not worth another size."""
    cost = CostModel(10.0, 0.5, SizingRule(quantum=4, resize_rows=8))
    cost.observe(4, cost.predict_ms(4))
    assert admit_drafts([Bid((0.5, 0.1, 0.01, 0.009, 0.008))], 1, 64, cost) == [3]
