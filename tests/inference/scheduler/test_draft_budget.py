"""Rows go to the drafts that are worth them; drafters are asked where it pays."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.scheduler.cost_model import DecodeCostModel
from services.inference.scheduler.draft_budget import (
    LATENCY_WEIGHT,
    LEAST_PROFIT,
    DraftGate,
    DraftOffer,
    allocate_draft_rows,
)
from services.inference.scheduler.draft_sources import DraftAttempt, DraftBackoff, ProfitTracker

SURVIVAL = st.lists(st.floats(0.0, 1.0), max_size=4).map(lambda s: sorted(s, reverse=True))


class Steps:
    """Calls of 4, 8, 12, ... rows."""

    def predict_ms(self, rows: int) -> float:
        return 10.0 + 0.5 * self.padded_rows(rows)

    def padded_rows(self, rows: int) -> int:
        return -(-rows // 4) * 4


def test_a_cheap_row_takes_an_unlikely_draft_and_a_dear_row_does_not() -> None:
    offers = [DraftOffer([0.3, 0.1])]
    assert allocate_draft_rows(offers, 1, 100, DecodeCostModel(10.0, 0.1)) == [2]
    assert allocate_draft_rows(offers, 1, 100, DecodeCostModel(1.0, 10.0)) == [0]


def test_padding_rows_are_used_whatever_the_odds() -> None:
    assert allocate_draft_rows(
        [DraftOffer([0.01, 0.01], 1)], 2, 100, DecodeCostModel(0.0, 1.0)
    ) == [1]
    assert allocate_draft_rows([DraftOffer([], 1)], 2, 100, DecodeCostModel(0.0, 1.0)) == [0]


def test_the_likeliest_drafts_of_all_sessions_come_first() -> None:
    offers = [DraftOffer([0.9, 0.2]), DraftOffer([0.8, 0.7]), DraftOffer([0.1])]
    assert allocate_draft_rows(offers, 3, 6, DecodeCostModel(100.0, 0.01)) == [1, 2, 0]


def test_without_offers_there_is_nothing_to_allocate() -> None:
    assert allocate_draft_rows([], 0, 10, DecodeCostModel(8.0, 1.0)) == []


@given(st.lists(SURVIVAL, min_size=1, max_size=3), st.floats(0.1, 20.0), st.floats(0.01, 5.0))
def test_no_other_choice_has_a_better_mean_of_commits_over_its_weighed_duration(
    survivals: list[list[float]], fixed_ms: float, row_ms: float
) -> None:
    cost = DecodeCostModel(fixed_ms, row_ms)
    offers = [DraftOffer(survival) for survival in survivals]

    def fairness(counts: tuple[int, ...]) -> float:
        means = (1.0 + sum(s[:n]) for s, n in zip(survivals, counts, strict=True))
        price = cost.predict_ms(len(offers) + sum(counts))
        return math.prod(means) / math.pow(price, LATENCY_WEIGHT * len(offers))

    chosen = tuple(allocate_draft_rows(offers, len(offers), 100, cost))
    best = max(map(fairness, product(*(range(len(s) + 1) for s in survivals))))
    # Short of the best only where the best gains hardly anything over no drafts.
    hardly = math.exp(LEAST_PROFIT * len(offers))
    none = fairness((0,) * len(offers))
    assert fairness(chosen) == pytest.approx(best) or (not any(chosen) and best <= none * hardly)


def test_those_who_repeat_themselves_hardly_slow_down_those_who_do_not() -> None:
    cost = DecodeCostModel(8.0, 1.2)
    counts = allocate_draft_rows([DraftOffer([0.95] * 8)] * 4 + [DraftOffer([])] * 4, 8, 500, cost)
    assert min(counts[:4]) >= 1
    assert cost.predict_ms(8 + sum(counts)) < 1.6 * cost.predict_ms(8)


@given(st.lists(SURVIVAL, min_size=1, max_size=4), st.integers(0, 12))
def test_stays_within_the_rows(survivals: list[list[float]], max_rows: int) -> None:
    offers = [DraftOffer(survival) for survival in survivals]
    counts = allocate_draft_rows(offers, len(offers), max_rows, DecodeCostModel(50.0, 0.001))
    assert sum(counts) <= max(0, max_rows - len(offers))


def test_rows_that_are_computed_anyway_take_weak_drafts_and_cost_rules_out_the_next_size() -> None:
    assert allocate_draft_rows([DraftOffer((0.5, 0.1, 0.01, 0.009, 0.008))], 1, 64, Steps()) == [3]
    assert allocate_draft_rows([DraftOffer((0.5, 0.1, 0.01, 0.009, 0.008))], 1, 3, Steps()) == [2]


NUM = 8


def gate_of(draft_attempt_ms: float = 0.1) -> DraftGate:
    return DraftGate(draft_attempt_ms)


COST = DecodeCostModel(10.0, 1.0)


def attempt_of(gate: DraftGate, num_drafts: int) -> DraftAttempt:
    """Of each sampled reply in a call of NUM with as many drafts each."""
    trackers = [gate.tracker(NUM, sampled=True)] * NUM
    return gate.attempts(trackers, [num_drafts] * NUM, NUM, COST)[0]


def fruitless(gate: DraftGate, calls: int, backoff: DraftBackoff) -> list[bool]:
    """In which calls the drafter is asked while nothing is ever found."""
    attempted = []
    for _ in range(calls):
        attempted.append(backoff.is_due(gate.tracker(NUM, sampled=True)))
        if attempted[-1]:
            backoff.observe(attempt_of(gate, 0), 1)
    return attempted


def test_an_attempt_costs_its_time_and_that_of_its_rows() -> None:
    trackers = [ProfitTracker() for _ in range(4)]
    attempts = gate_of(0.9).attempts(trackers, [0, 1, 2, 0], 8, COST)
    tokens_per_ms = 4 / 18.0
    assert [attempt.cost_tokens for attempt in attempts] == [
        (0.9 + rows * 1.0) * tokens_per_ms for rows in (0, 1, 2, 0)
    ]
    assert [attempt.succeeded for attempt in attempts] == [False, True, True, False]
    assert [attempt.tracker for attempt in attempts] == trackers


def test_attempts_that_find_nothing_become_rare() -> None:
    attempted = fruitless(gate_of(), 2000, DraftBackoff())
    assert all(attempted[:20])
    assert 0 < sum(attempted[-160:]) <= 10


def test_a_success_ends_the_backoff_of_that_session_only() -> None:
    gate, lucky, other = gate_of(), DraftBackoff(), DraftBackoff()
    fruitless(gate, 2000, lucky)
    fruitless(gate, 40, other)
    while not lucky.is_due(gate.tracker(NUM, sampled=True)):
        pass
    lucky.observe(attempt_of(gate, 1), 2)
    assert lucky.is_due(gate.tracker(NUM, sampled=True))
    assert sum(fruitless(gate, 16, other)) <= 2


def test_attempts_that_pay_again_are_made_by_all_again() -> None:
    gate, backoff = gate_of(), DraftBackoff()
    fruitless(gate, 2000, backoff)
    tracker = gate.tracker(NUM, sampled=True)
    found, nothing = DraftAttempt(tracker, 1.0, True), DraftAttempt(tracker, 0.05, False)
    for _ in range(400):
        while not backoff.is_due(tracker):
            pass
        backoff.observe(found, 5)
        backoff.observe(nothing, 1)
    assert all(DraftBackoff(num_skipped=3, num_to_skip=3).is_due(tracker) for _ in range(5))


def test_greedy_replies_and_calls_of_another_size_are_tracked_apart() -> None:
    gate = gate_of()
    fruitless(gate, 2000, DraftBackoff())
    idle = DraftBackoff(num_skipped=15, num_to_skip=15)
    assert DraftBackoff(15, 15).is_due(gate.tracker(NUM, sampled=False))
    assert DraftBackoff(15, 15).is_due(gate.tracker(NUM // 2, sampled=True))
    assert not idle.is_due(gate.tracker(NUM, sampled=True))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=300), st.integers(1, 40))
def test_no_session_is_ever_left_out_for_long(
    finds: list[tuple[bool, int]], num_sessions: int
) -> None:
    gate, backoff, missed = gate_of(), DraftBackoff(), 0
    tracker = gate.tracker(num_sessions, sampled=False)
    for found, committed in finds:
        if not backoff.is_due(tracker):
            missed += 1
            assert missed <= 15
            continue
        missed = 0
        counts = [int(found)] * num_sessions
        attempts = gate.attempts([tracker] * num_sessions, counts, num_sessions, COST)
        backoff.observe(attempts[0], committed)
