"""A replica's load with in-flight credit, and round trips taken from sessions. Virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.peers.health import HealthPolicy, PeerHealth, PeerState
from outrider.peers.round_trip import RoundTrip
from services.router.fleet.load import Load
from services.router.fleet.replica import Replica


def replica() -> Replica:
    """One that is 10 ms away."""
    health = PeerHealth(HealthPolicy(), 0.0, PeerState.READY)
    return Replica("a", "r", "h:1", "", health, RoundTrip(10.0))


def test_a_report_covers_what_was_placed_a_round_trip_before() -> None:
    it = replica()
    it.place(1, 100, now=1.000)
    it.place(2, 50, now=1.005)
    assert (it.num_sessions, it.placed_tokens) == (2, 150)
    it.report(Load(running_sessions=1, queued_prompt_tokens=80), now=1.012)
    assert (it.num_sessions, it.placed_tokens) == (2, 50)
    it.report(Load(running_sessions=2), now=1.016)
    assert (it.num_sessions, it.placed_tokens) == (2, 0)


def test_a_session_that_ends_before_the_report_is_uncounted() -> None:
    it = replica()
    it.place(1, 100, now=1.0)
    it.release(1)
    it.release(1)
    assert (it.num_sessions, it.placed_tokens, it.sessions) == (0, 0, set())


def test_full_is_reported_and_placed_together() -> None:
    it = replica()
    assert it.num_excess == 0
    it.report(Load(running_sessions=2, queued_sessions=1, max_sessions=4), now=0.0)
    assert it.num_excess == 0
    it.place(1, 10, now=1.0)
    assert it.num_excess == 1
    it.report(Load(running_sessions=4, queued_sessions=3, max_sessions=4), now=2.0)
    assert it.num_excess == 4


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["place", "release", "report"]),
            st.integers(0, 5),
            st.integers(0, 1000),
            st.floats(0, 0.05),
        ),
        max_size=60,
    )
)
def test_placed_tokens_always_equal_the_sum_of_what_is_placed(
    steps: list[tuple[str, int, int, float]],
) -> None:
    it = replica()
    now, placed = 0.0, dict[int, tuple[float, int]]()
    for verb, session, tokens, passed in steps:
        now += passed
        if verb == "place" and session not in it.sessions:
            it.place(session, tokens, now)
            placed[session] = (now, tokens)
        elif verb == "release":
            it.release(session)
            placed.pop(session, None)
        elif verb == "report":
            it.report(Load(), now)
            placed = {s: p for s, p in placed.items() if p[0] > now - 0.010}
        assert it.placed_tokens == sum(tokens for _, tokens in placed.values())
        assert it.num_sessions == len(placed)


def test_an_answered_open_measures_the_way_without_the_time_it_was_held() -> None:
    it = replica()
    it.place(1, 100, now=1.0)
    it.opened(1, held_ms=400.0, now=1.425)
    assert it.rtt.smoothed_ms == pytest.approx(25.0)
    it.opened(1, held_ms=1.0, now=9.0)  # once for each open
    assert it.rtt.smoothed_ms == pytest.approx(25.0)


@pytest.mark.parametrize("held_ms", [0.0, 600.0, float("inf"), float("nan")])
def test_answers_that_measure_nothing_are_left_out(held_ms: float) -> None:
    it = replica()
    it.place(1, 100, now=1.0)
    it.opened(1, held_ms, now=1.5)
    assert not it.rtt.is_measured
    it.opened(2, 1.0, now=1.5)  # never sent
    assert not it.rtt.is_measured
