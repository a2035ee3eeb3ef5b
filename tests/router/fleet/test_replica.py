"""A replica's sessions, and the round trips taken from them. Virtual time."""

from __future__ import annotations

import pytest

from outrider.peers.health import HealthPolicy, PeerHealth, PeerState
from outrider.peers.round_trip import RoundTrip
from services.router.fleet.replica import PrefillLimits, Replica, ReplicaLoad, ServedModel


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


def test_an_answered_open_measures_the_round_trip_without_the_ack_delay() -> None:
    it = replica()
    it.place(1, now=1.0)
    it.opened(1, ack_delay_ms=400.0, now=1.425)
    assert it.rtt.smoothed_ms == pytest.approx(25.0)
    it.opened(1, ack_delay_ms=1.0, now=9.0)  # once for each open
    assert it.rtt.smoothed_ms == pytest.approx(25.0)


@pytest.mark.parametrize("ack_delay_ms", [0.0, 600.0, float("inf"), float("nan")])
def test_answers_that_measure_nothing_are_left_out(ack_delay_ms: float) -> None:
    it = replica()
    it.place(1, now=1.0)
    it.opened(1, ack_delay_ms, now=1.5)
    assert not it.rtt.is_measured
    it.opened(2, 1.0, now=1.5)  # never sent
    assert not it.rtt.is_measured


def test_the_longest_call_is_that_of_the_chunk_which_the_replica_reports() -> None:
    it = replica()
    it.report(ReplicaLoad(fixed_ms=10.0, row_ms=2.0), now=1.0)
    it.model = ServedModel("m", b"", prefill_limits=PrefillLimits(1000, 12, 40.0, 5.0, 1.25))
    assert it.longest_call_ms == 10.0 + 2.0 * 1000
    it.load = None
    assert it.longest_call_ms == 0.0, "it has reported no cost"
