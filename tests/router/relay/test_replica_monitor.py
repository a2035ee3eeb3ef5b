"""How long a replica may be silent."""

from __future__ import annotations

from services.router.relay.replica_monitor import HangDetector, HangPolicy


def test_a_replica_may_be_silent_for_as_long_as_its_calls_take() -> None:
    detector = HangDetector(HangPolicy(min_silence_s=2.0, num_calls=20.0))
    assert detector.limit_s(longest_call_ms=35.6) == 2.0
    assert detector.limit_s(longest_call_ms=306.0) == 20 * 306 / 1000


def test_any_frame_is_a_sign_of_life() -> None:
    detector = HangDetector(HangPolicy())
    detector.heard(1, 5.0)
    assert not detector.is_silent(1, 2.0, 6.9)
    assert detector.is_silent(1, 2.0, 7.0)
    detector.detached(1)
    assert detector.is_silent(1, 2.0, 5.0), "nothing was heard of it yet"
