"""A replica's sessions, and the round trips taken from them. Virtual time."""

from __future__ import annotations

import pytest

from outrider.peers.health import HealthPolicy, PeerHealth, PeerState
from outrider.peers.round_trip import RoundTrip
from services.router.fleet.replica import Replica


def replica() -> Replica:
    """One that is 10 ms away."""
    health = PeerHealth(HealthPolicy(), 0.0, PeerState.READY)
    return Replica("a", "r", "h:1", "", health, RoundTrip(10.0))


def test_it_knows_the_sessions_it_has() -> None:
    it = replica()
    it.place(1, now=1.0)
    it.place(2, now=1.0)
    it.release(1)
    it.release(1)
    assert it.sessions == {2}


def test_an_answered_open_measures_the_way_without_the_time_it_was_held() -> None:
    it = replica()
    it.place(1, now=1.0)
    it.opened(1, held_ms=400.0, now=1.425)
    assert it.rtt.smoothed_ms == pytest.approx(25.0)
    it.opened(1, held_ms=1.0, now=9.0)  # once for each open
    assert it.rtt.smoothed_ms == pytest.approx(25.0)


@pytest.mark.parametrize("held_ms", [0.0, 600.0, float("inf"), float("nan")])
def test_answers_that_measure_nothing_are_left_out(held_ms: float) -> None:
    it = replica()
    it.place(1, now=1.0)
    it.opened(1, held_ms, now=1.5)
    assert not it.rtt.is_measured
    it.opened(2, 1.0, now=1.5)  # never sent
    assert not it.rtt.is_measured
