"""Round trips by numbers that come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.edge.session.control.round_trip import RoundTrip


def trip(path: RoundTrip, rtt_s: float, now: float = 0.0, held_s: float = 0.0) -> None:
    path.returned(path.number(now), held_s, now + rtt_s + held_s)


def test_what_the_far_end_held_is_not_the_network() -> None:
    path = RoundTrip()
    assert path.median_s is None
    trip(path, 0.1, held_s=0.5)
    trip(path, 0.3)
    trip(path, 0.2)
    assert path.median_s == pytest.approx(0.2)


def test_a_number_counts_once_and_settles_those_before_it() -> None:
    path = RoundTrip()
    first, second = path.number(0.0), path.number(1.0)
    path.returned(second, 0.0, 1.1)
    path.returned(second, 0.0, 9.0)
    path.returned(first, 0.0, 9.0)
    path.returned(0, 0.0, 9.0)
    path.returned(77, 0.0, 9.0)
    assert path.median_s == pytest.approx(0.1)


def test_more_than_the_whole_time_cannot_have_been_held() -> None:
    path = RoundTrip()
    path.returned(path.number(0.0), 3.0, 1.0)
    assert path.median_s == 0.0


def test_numbers_take_one_byte_and_forget_what_was_never_answered() -> None:
    path = RoundTrip()
    numbers = [path.number(float(n)) for n in range(300)]
    assert set(numbers) == set(range(1, 128))
    path.returned(numbers[0], 0.0, 300.0)
    assert path.median_s == pytest.approx(300 - 254), "the number is a later frame's by now"
    path.returned(numbers[200], 0.0, 300.0)
    assert path.median_s == pytest.approx(300 - 254), "too long ago to be remembered"


def test_another_path_is_another_regime() -> None:
    path = RoundTrip()
    for n in range(20):
        trip(path, 0.02 + 0.001 * (n % 3), float(n))
    assert path.regime == 0
    for n in range(20, 30):
        trip(path, 0.2, float(n))
    assert path.regime == 1
    assert path.median_s == pytest.approx(0.2)


@given(st.lists(st.floats(0.05, 0.07), min_size=1, max_size=80))
def test_jitter_is_no_other_path(samples: list[float]) -> None:
    path = RoundTrip()
    for n, rtt_s in enumerate(samples):
        trip(path, rtt_s, float(n))
    assert path.regime == 0
    assert path.median_s is not None
    assert 0.0499 <= path.median_s <= 0.0701
