"""Pauses that double."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_after_a_success_they_begin_with_the_first() -> None:
    backoff = Backoff(0.5, 3.0)
    backoff.next_s()
    backoff.next_s()
    backoff.reset()
    assert [backoff.next_s(), backoff.next_s()] == [0.5, 1.0]


@given(st.floats(1e-3, 100), st.floats(1e-3, 100), st.integers(1, 60))
def test_no_pause_is_outside_the_bounds(first_s: float, max_s: float, count: int) -> None:
    backoff = Backoff(first_s, max_s)
    pauses = [backoff.next_s() for _ in range(count)]
    assert min(pauses) == min(first_s, max_s) and max(pauses) <= max_s
    assert pauses == sorted(pauses)
