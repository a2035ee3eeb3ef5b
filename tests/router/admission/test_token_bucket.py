"""A token bucket whose reservations may be given back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.admission.token_bucket import MAX_LOWS, ReservationBucket

CAPACITY, RATE = 60.0, 1.0


def test_it_starts_full_and_fills_at_its_rate() -> None:
    bucket = ReservationBucket(CAPACITY, RATE, 0.0)
    assert bucket.wait_s(60, 0.0) == 0.0
    bucket.take(60, 0.0)
    assert bucket.wait_s(20, 0.0) == pytest.approx(20.0)
    assert bucket.wait_s(20, 15.0) == pytest.approx(5.0)
    assert bucket.level(1000.0) == CAPACITY


def test_more_than_it_can_hold_never_comes() -> None:
    assert math.isinf(ReservationBucket(CAPACITY, RATE, 0.0).wait_s(61, 0.0))


def test_what_was_not_used_is_there_again() -> None:
    bucket = ReservationBucket(CAPACITY, RATE, 0.0)
    number = bucket.take(50, 0.0)
    bucket.give_back(number, 30, 10.0)
    assert bucket.level(10.0) == pytest.approx(50.0)


def test_nothing_comes_back_once_it_would_have_been_full_anyway() -> None:
    bucket = ReservationBucket(CAPACITY, RATE, 0.0)
    number = bucket.take(50, 0.0)
    bucket.take(40, 50.0)  # full again just before
    bucket.give_back(number, 50, 51.0)
    assert bucket.level(51.0) == pytest.approx(21.0)


def test_what_two_give_back_is_there_as_if_neither_had_taken_it() -> None:
    bucket = ReservationBucket(CAPACITY, RATE, 0.0)
    first, second = bucket.take(60, 0.0), bucket.take(30, 0.0)
    bucket.take(10, 30.0)
    bucket.give_back(first, 40, 30.0)  # without these, nothing of the first 20 would be owed now
    bucket.give_back(second, 30, 30.0)
    assert bucket.level(30.0) == pytest.approx(CAPACITY - 10)


def test_time_that_runs_backwards_adds_nothing() -> None:
    bucket = ReservationBucket(CAPACITY, RATE, 10.0)
    bucket.take(60, 10.0)
    assert bucket.level(5.0) == pytest.approx(0.0)
    assert bucket.level(11.0) == pytest.approx(1.0)


Steps = list[tuple[float, int, float, float]]
"""Of each session: seconds since the one before, tokens, share used, seconds it lasts."""

steps = st.lists(
    st.tuples(st.floats(0.0, 30.0), st.integers(1, 60), st.floats(0.0, 1.0), st.floats(0.0, 100.0)),
    max_size=60,
)


def let_in(sessions: Steps) -> list[tuple[float, float]]:
    """When each session was let in, and the tokens it used."""
    bucket = ReservationBucket(CAPACITY, RATE, 0.0)
    ends: list[tuple[float, int, float]] = []
    used: list[tuple[float, float]] = []
    now = 0.0
    for pause_s, tokens, share, lasts_s in sessions:
        now += pause_s
        for end in sorted(end for end in ends if end[0] <= now):
            bucket.give_back(end[1], end[2], end[0])
            ends.remove(end)
        if bucket.wait_s(tokens, now) == 0.0:
            number = bucket.take(tokens, now)
            ends.append((now + lasts_s, number, tokens * (1.0 - share)))
            used.append((now, tokens * share))
    return used


@given(steps)
def test_over_any_window_no_more_is_used_than_the_limit(sessions: Steps) -> None:
    used = let_in(sessions)
    for first, (since, _) in enumerate(used):
        total = 0.0
        for until, tokens in used[first:]:
            total += tokens
            assert total <= CAPACITY + RATE * (until - since) + 1e-6


@given(steps)
def test_one_session_after_the_other_gets_all_the_limit_allows(sessions: Steps) -> None:
    """With every session ended before the next, giving back is as if less had been taken."""
    bucket, exact = (ReservationBucket(CAPACITY, RATE, 0.0) for _ in range(2))
    now = 0.0
    for pause_s, tokens, share, _ in sessions:
        now += pause_s
        if bucket.wait_s(tokens, now) == 0.0:
            number = bucket.take(tokens, now)
            bucket.give_back(number, tokens * (1.0 - share), now)
            exact.take(tokens * share, now)
        assert bucket.level(now) == pytest.approx(exact.level(now), abs=1e-6)


def test_what_it_remembers_is_bounded() -> None:
    bucket = ReservationBucket(1e6, 1.0, 0.0)
    numbers = [bucket.take(10, 0.0) for _ in range(4 * MAX_LOWS)]
    assert len(bucket._lows) == len(bucket._reservations) == MAX_LOWS
    bucket.give_back(numbers[-1], 10, 0.0)
    assert bucket.level(0.0) == pytest.approx(1e6 - 40 * MAX_LOWS + 10)
    bucket.give_back(numbers[0], 10, 0.0)
    assert bucket.level(0.0) <= 1e6 - 40 * MAX_LOWS + 20
