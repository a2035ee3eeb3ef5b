"""The cost models find the line that calls follow."""

from __future__ import annotations

import random
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.base import SizingRule
from services.inference.scheduler.cost_model import CostModel, DecodeCostModel, attention_work

CONTEXT_MS = 0.23
"""Per thousand tokens and row: what SmolLM2-135M shows on one core."""


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


def test_a_cost_is_a_guess_until_a_prompt_was_computed() -> None:
    cost, was_guess = CostModel(8.0, 1.2), list[bool]()
    for rows in (2,) * 200 + (256,):
        was_guess.append(cost.is_guess)
        cost.observe(rows, 5.0)
    assert all(was_guess), "small calls tell little of the cost of a row"
    assert not cost.is_guess
    short, was_guess = CostModel(8.0, 1.2), []
    for _ in range(3):
        was_guess.append(short.is_guess)
        short.observe(40, 20.0)
    assert all(was_guess)
    assert not short.is_guess


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


@pytest.mark.parametrize("first_rows", [2, 8, 168])
def test_a_guess_far_too_low_is_not_taken_for_the_cost_of_contexts(first_rows: int) -> None:
    """As of replies on an engine that takes 200 ms whatever is in a call, behind a first prompt."""
    cost = CostModel(8.0, 1.2)
    cost.observe(first_rows, 200.0 + 0.1 * first_rows, attention_work(first_rows, 0))
    for step in range(12):
        cost.observe(8, 200.8, 4 * attention_work(2, 40 + step))
    assert cost.attention_ms * attention_work(2, 50) < 2.0, "one more reply costs next to nothing"
    assert cost.predict_ms(8, 4 * attention_work(2, 52)) == pytest.approx(200.8, rel=0.05)


def test_first_calls_that_were_held_up_do_not_make_the_guess_worse() -> None:
    cost = CostModel(8.0, 1.2)
    for rows, duration_ms in ((2, 3000.0), (20, 900.0), (2, 10.4), (4, 400.0)):
        cost.observe(rows, duration_ms)
    for _ in range(20):
        cost.observe(2, 10.4)
    assert cost.predict_ms(2) < 1.5 * 10.4


def slices_of(rng: Random) -> list[tuple[int, int]]:
    """(tokens, past) of a call: replies, and perhaps a chunk of a prompt."""
    replies = [(1, rng.choice([100, 500, 1500])) for _ in range(rng.randrange(1, 9))]
    return [*replies, *([(rng.choice([16, 64]), rng.randrange(0, 1500))] * rng.randrange(2))]


def test_the_cost_of_contexts_is_found() -> None:
    cost, rng = CostModel(8.0, 1.2), Random(1)
    for _ in range(400):
        slices = slices_of(rng)
        rows = sum(n for n, _ in slices)
        work = sum(attention_work(n, past) for n, past in slices)
        noise = rng.uniform(0.95, 1.05)
        cost.observe(rows, noise * (9.0 + 0.5 * rows + CONTEXT_MS * work), work)
    assert cost.attention_ms == pytest.approx(CONTEXT_MS, rel=0.15)
    assert cost.row_ms == pytest.approx(0.5, rel=0.25)
    assert cost.predict_ms(8, 8 * attention_work(1, 1500)) == pytest.approx(
        13.0 + CONTEXT_MS * 8 * attention_work(1, 1500), rel=0.1
    )


def test_an_engine_to_which_contexts_cost_nothing_is_believed() -> None:
    cost, rng = CostModel(8.0, 1.2), Random(1)
    for _ in range(300):
        slices = slices_of(rng)
        rows = sum(n for n, _ in slices)
        work = sum(attention_work(n, past) for n, past in slices)
        cost.observe(rows, 9.0 + 0.5 * rows, work)
    assert cost.attention_ms == pytest.approx(0.0, abs=0.01)
    assert cost.predict_ms(20, 300.0) == pytest.approx(19.0, rel=0.1)


def test_finds_the_slope_near_the_sizes_seen() -> None:
    """Flat up to 8 rows, steep above: between 12 and 16 rows the steep part counts."""
    cost, rng = DecodeCostModel(8.0, 1.2), random.Random(1)
    for _ in range(200):
        rows = rng.randint(12, 16)
        cost.observe(rows, 10.0 + 2.0 * (rows - 8) + rng.uniform(-0.2, 0.2), 0.5)
    assert cost.row_ms == pytest.approx(2.0, rel=0.15)
    assert cost.predict_ms(14) == pytest.approx(22.0, rel=0.02)


def test_decode_calls_of_one_size_go_by_the_expected_slope() -> None:
    cost = DecodeCostModel(8.0, 1.2)
    for _ in range(300):
        cost.observe(8, 20.0, 0.7)
    assert cost.row_ms == pytest.approx(0.7)
    assert cost.predict_ms(8) == pytest.approx(20.0)


def test_the_more_sessions_the_likelier_a_draft_must_be() -> None:
    cost = DecodeCostModel(9.0, 1.0)
    least = [cost.least_survival(num_sessions) for num_sessions in (0, 1, 9, 200)]
    assert least == [0.01, pytest.approx(0.1), pytest.approx(0.5), 0.6]


def test_a_draft_does_not_cost_what_one_more_reply_does() -> None:
    """Replies begin and end, each with a context that its drafts share: the price of a draft is a
    row's, also where reading a context takes three times as long."""
    cost, rng = DecodeCostModel(8.0, 1.2), Random(1)
    context = attention_work(1, 200)
    for _ in range(300):
        num_sessions = rng.randint(20, 32)
        rows = num_sessions + rng.randint(0, 12)
        noise = rng.uniform(0.98, 1.02)
        attention = num_sessions * context
        ms = noise * (16.0 + 1.0 * rows + 3.0 / context * attention)
        cost.observe(rows, ms, 1.5, attention, 2.0 / context)
    call = cost.reading(32 * context)
    assert call.predict_ms(40) - call.predict_ms(32) == pytest.approx(8 * 1.0, rel=0.15)
    assert call.predict_ms(32) == pytest.approx(16.0 + 32 * 4.0, rel=0.02)
    assert cost.least_survival(32, 32 * context) < cost.least_survival(32)


def test_what_calls_that_are_alike_do_not_tell_is_split_between_rows_and_contexts() -> None:
    """Eight replies, never a draft: both may be what costs more than expected."""
    cost, context = DecodeCostModel(8.0, 1.2), attention_work(1, 200)
    for number in range(400):
        num_sessions = 6 + number % 5
        cost.observe(
            num_sessions, 10.0 + 4.0 * num_sessions, 1.0, num_sessions * context, 1.0 / context
        )
    assert 1.2 < cost.row_ms < 2.8
    assert cost.predict_ms(8, 8 * context) == pytest.approx(42.0, rel=0.03)


def test_calls_far_below_those_seen_are_taken_to_cost_in_proportion() -> None:
    """The line, a guess there, would say that rows are nearly free."""
    cost = DecodeCostModel(8.0, 1.2)
    for _ in range(100):
        cost.observe(8, 40.0, 0.1)
    at_half = cost.fixed_ms + cost.row_ms * 4
    assert at_half > 39.0
    shares = [cost.predict_ms(rows) / at_half for rows in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1.0])
    cost.observe(1, 5.5, 0.1)
    assert cost.predict_ms(1) == pytest.approx(cost.fixed_ms + cost.row_ms)


def test_padding_is_free() -> None:
    cost = DecodeCostModel(8.0, 1.0, SizingRule(quantum=4))
    assert cost.predict_ms(5) == cost.predict_ms(8) == pytest.approx(16.0)
    assert cost.padded_rows(5) == 8


KINDS = pytest.mark.parametrize("kind", [CostModel, DecodeCostModel])


def observe(cost: CostModel | DecodeCostModel, rows: int, ms: float) -> None:
    if isinstance(cost, DecodeCostModel):
        cost.observe(rows, ms, 1.0)
    else:
        cost.observe(rows, ms)


@KINDS
def test_starts_from_its_first_guess(kind: type[CostModel] | type[DecodeCostModel]) -> None:
    assert kind(8.0, 1.2).predict_ms(10) == pytest.approx(20.0)


@KINDS
def test_one_held_up_call_changes_little(kind: type[CostModel] | type[DecodeCostModel]) -> None:
    cost = kind(8.0, 1.0)
    for step in range(100):
        observe(cost, 8 + step % 5, 16.0 + step % 5)
    observe(cost, 8, 5000.0)
    assert cost.predict_ms(8) < 19.0


@KINDS
@given(calls=st.lists(st.tuples(st.integers(1, 600), st.floats(0.0, 5000.0)), max_size=40))
def test_costs_are_never_negative(
    kind: type[CostModel] | type[DecodeCostModel], calls: list[tuple[int, float]]
) -> None:
    cost = kind(8.0, 1.2)
    for rows, duration_ms in calls:
        observe(cost, rows, duration_ms)
        assert 0.0 < cost.predict_ms(1) <= cost.predict_ms(8)
