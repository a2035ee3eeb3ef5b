"""Round trips by numbers that come back, and the pace of commits and drafts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.session.region import Pace
from services.edge.session.timing import OwnTokensAverage, PaceTracker, RoundTrip


def trip(path: RoundTrip, rtt_s: float, now: float = 0.0, ack_delay_s: float = 0.0) -> None:
    path.returned(path.next_echo(now), ack_delay_s, now + rtt_s + ack_delay_s)


def test_what_the_far_end_held_is_not_the_network() -> None:
    path = RoundTrip()
    assert path.median_s is None
    trip(path, 0.1, ack_delay_s=0.5)
    trip(path, 0.3)
    trip(path, 0.2)
    assert path.median_s == pytest.approx(0.2)


def test_a_number_counts_once_and_settles_those_before_it() -> None:
    path = RoundTrip()
    first, second = path.next_echo(0.0), path.next_echo(1.0)
    path.returned(second, 0.0, 1.1)
    path.returned(second, 0.0, 9.0)
    path.returned(first, 0.0, 9.0)
    path.returned(0, 0.0, 9.0)
    path.returned(77, 0.0, 9.0)
    assert path.median_s == pytest.approx(0.1)


def test_more_than_the_whole_time_cannot_have_been_held() -> None:
    path = RoundTrip()
    path.returned(path.next_echo(0.0), 3.0, 1.0)
    assert path.median_s == 0.0


def test_numbers_take_one_byte_and_forget_what_was_never_answered() -> None:
    path = RoundTrip()
    numbers = [path.next_echo(float(n)) for n in range(300)]
    assert set(numbers) == set(range(1, 128))
    path.returned(numbers[0], 0.0, 300.0)
    assert path.median_s == pytest.approx(300 - 254), "the number is a later frame's by now"
    path.returned(numbers[200], 0.0, 300.0)
    assert path.median_s == pytest.approx(300 - 254), "too long ago to be remembered"


def test_a_change_of_the_path_is_counted() -> None:
    path = RoundTrip()
    for n in range(20):
        trip(path, 0.02 + 0.001 * (n % 3), float(n))
    assert path.num_path_changes == 0
    for n in range(20, 30):
        trip(path, 0.2, float(n))
    assert path.num_path_changes == 1
    assert path.median_s == pytest.approx(0.2)


@given(st.lists(st.floats(0.05, 0.07), min_size=1, max_size=80))
def test_jitter_is_no_other_path(samples: list[float]) -> None:
    path = RoundTrip()
    for n, rtt_s in enumerate(samples):
        trip(path, rtt_s, float(n))
    assert path.num_path_changes == 0
    assert path.median_s is not None
    assert 0.0499 <= path.median_s <= 0.0701


def test_a_chat_knows_what_regions_found_by_themselves_in_earlier_ones() -> None:
    average = OwnTokensAverage()
    before = PaceTracker(average)
    assert before.own_tokens == 1.0
    for _ in range(60):
        before.observe_own(3)
    after = PaceTracker(average)
    assert after.own_tokens == pytest.approx(3.0, abs=0.2)
    for _ in range(60):
        after.observe_own(1)
    assert after.own_tokens == pytest.approx(1.0, abs=0.2), "its own is what counts"


def test_the_pace_counts_what_the_region_finds_by_itself() -> None:
    book = PaceTracker()
    for _ in range(60):
        book.observe_own(3)
    assert book.own_tokens == pytest.approx(3.0, abs=0.1)
    book.told(Pace(0.03))
    book.told(Pace())
    assert book.interval_s == pytest.approx(0.03), "a time that is not told changes nothing"


def test_the_time_of_a_draft_is_a_ratio_of_sums() -> None:
    book = PaceTracker()
    assert book.draft_s == 0.0
    for _ in range(100):
        book.drafted(9, 0.009)
        book.drafted(1, 0.021)
    assert book.draft_s == pytest.approx(0.003, rel=0.1)
