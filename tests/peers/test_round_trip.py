"""Round trips, smoothed and least."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.peers.round_trip import RoundTrip


def test_the_first_sample_replaces_the_guess() -> None:
    rtt = RoundTrip(100.0)
    assert (rtt.smoothed_ms, rtt.min_ms, rtt.is_measured) == (100.0, 100.0, False)
    rtt.guess(80.0)
    assert rtt.smoothed_ms == 80.0
    rtt.add(20.0)
    rtt.guess(300.0)
    assert (rtt.smoothed_ms, rtt.min_ms, rtt.is_measured) == (20.0, 20.0, True)


def test_a_stall_moves_the_estimate_little() -> None:
    rtt = RoundTrip(100.0)
    for _ in range(10):
        rtt.add(1.0)
    rtt.add(1000.0)
    assert rtt.smoothed_ms < 3.0


def test_a_longer_path_is_learned_as_the_short_one_is_forgotten() -> None:
    rtt = RoundTrip(1.0)
    rtt.add(1.0)
    for _ in range(200):
        rtt.add(80.0)
    assert rtt.smoothed_ms == pytest.approx(80.0, rel=0.01)


@given(st.lists(st.floats(0.01, 1000), min_size=1, max_size=100))
def test_the_estimate_stays_within_what_was_seen(samples: list[float]) -> None:
    rtt = RoundTrip(50.0)
    for sample in samples:
        rtt.add(sample)
    assert min(samples) * 0.999 <= rtt.smoothed_ms <= max(samples) * 1.001
