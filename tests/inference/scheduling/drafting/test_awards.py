"""The rows go to the drafts that pay."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.scheduler.awards import (
    LATENCY_WEIGHT,
    LEAST_PROFIT,
    Bid,
    award_rows,
)
from services.inference.scheduler.decode_cost import DecodeCost

SURVIVAL = st.lists(st.floats(0.0, 1.0), max_size=4).map(lambda s: sorted(s, reverse=True))


class Steps:
    """Calls of 4, 8, 12, ... rows."""

    def price_ms(self, rows: int) -> float:
        return 10.0 + 0.5 * self.free_rows(rows)

    def free_rows(self, rows: int) -> int:
        return -(-rows // 4) * 4


def test_a_cheap_row_takes_an_unlikely_draft_and_a_dear_row_does_not() -> None:
    bids = [Bid([0.3, 0.1])]
    assert award_rows(bids, 1, 100, DecodeCost(10.0, 0.1)) == [2]
    assert award_rows(bids, 1, 100, DecodeCost(1.0, 10.0)) == [0]


def test_paid_rows_are_used_whatever_the_odds() -> None:
    assert award_rows([Bid([0.01, 0.01], 1)], 2, 100, DecodeCost(0.0, 1.0)) == [1]
    assert award_rows([Bid([], 1)], 2, 100, DecodeCost(0.0, 1.0)) == [0]


def test_the_likeliest_drafts_of_all_sessions_come_first() -> None:
    bids = [Bid([0.9, 0.2]), Bid([0.8, 0.7]), Bid([0.1])]
    assert award_rows(bids, 3, 6, DecodeCost(100.0, 0.01)) == [1, 2, 0]


def test_nobody_bids() -> None:
    assert award_rows([], 0, 10, DecodeCost(8.0, 1.0)) == []


@given(st.lists(SURVIVAL, min_size=1, max_size=3), st.floats(0.1, 20.0), st.floats(0.01, 5.0))
def test_no_other_choice_has_a_better_mean_of_commits_over_its_weighed_duration(
    survivals: list[list[float]], fixed_ms: float, row_ms: float
) -> None:
    cost = DecodeCost(fixed_ms, row_ms)
    bids = [Bid(survival) for survival in survivals]

    def fairness(counts: tuple[int, ...]) -> float:
        means = (1.0 + sum(s[:n]) for s, n in zip(survivals, counts, strict=True))
        price = cost.price_ms(len(bids) + sum(counts))
        return math.prod(means) / math.pow(price, LATENCY_WEIGHT * len(bids))

    chosen = tuple(award_rows(bids, len(bids), 100, cost))
    best = max(map(fairness, product(*(range(len(s) + 1) for s in survivals))))
    # Short of the best only where the best gains hardly anything over no drafts.
    hardly = math.exp(LEAST_PROFIT * len(bids))
    none = fairness((0,) * len(bids))
    assert fairness(chosen) == pytest.approx(best) or (not any(chosen) and best <= none * hardly)


def test_those_who_repeat_themselves_hardly_slow_down_those_who_do_not() -> None:
    cost = DecodeCost(8.0, 1.2)
    counts = award_rows([Bid([0.95] * 8)] * 4 + [Bid([])] * 4, 8, 500, cost)
    assert min(counts[:4]) >= 1
    assert cost.price_ms(8 + sum(counts)) < 1.6 * cost.price_ms(8)


@given(st.lists(SURVIVAL, min_size=1, max_size=4), st.integers(0, 12))
def test_stays_within_the_rows(survivals: list[list[float]], max_rows: int) -> None:
    bids = [Bid(survival) for survival in survivals]
    counts = award_rows(bids, len(bids), max_rows, DecodeCost(50.0, 0.001))
    assert sum(counts) <= max(0, max_rows - len(bids))


def test_rows_that_are_computed_anyway_take_weak_drafts_and_cost_rules_out_the_next_size() -> None:
    assert award_rows([Bid((0.5, 0.1, 0.01, 0.009, 0.008))], 1, 64, Steps()) == [3]
    assert award_rows([Bid((0.5, 0.1, 0.01, 0.009, 0.008))], 1, 3, Steps()) == [2]
