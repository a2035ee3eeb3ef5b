"""Failures within a window, and pauses that grow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.peers.quarantine import Quarantine, QuarantinePolicy

POLICY = QuarantinePolicy(max_failures=3, window_s=10.0, first_s=2.0, max_s=9.0)


def test_failures_count_within_the_window_alone() -> None:
    quarantine = Quarantine(POLICY)
    assert [quarantine.fail(at) for at in (0.0, 5.0, 10.5)] == [False, False, False]
    assert quarantine.fail(15.0)  # 5, 10.5, 15


def test_every_pause_in_a_row_is_twice_the_one_before_up_to_a_limit() -> None:
    quarantine = Quarantine(POLICY)
    pauses = []
    now = 0.0
    for _ in range(4):
        quarantine.begin(now)
        pauses.append(quarantine.until - now)
        now = quarantine.until
    assert pauses == [2.0, 4.0, 8.0, 9.0]
    assert quarantine.count == 4


def test_who_fails_again_soon_after_a_good_trial_waits_longer() -> None:
    quarantine = Quarantine(POLICY)
    quarantine.begin(0.0)
    quarantine.clear(2.0)
    assert not quarantine.is_active
    quarantine.begin(5.0)
    assert quarantine.until == 9.0
    quarantine.clear(9.0)
    quarantine.begin(19.5)  # the window has passed: as if it had never been
    assert quarantine.until == 21.5


def test_a_good_trial_forgets_the_failures() -> None:
    quarantine = Quarantine(POLICY)
    for at in (0.0, 0.0):
        quarantine.fail(at)
    quarantine.begin(0.0)
    quarantine.clear(2.0)
    assert [quarantine.fail(3.0) for _ in range(3)] == [False, False, True]


@given(st.lists(st.floats(0.0, 20.0), max_size=30))
def test_too_many_means_that_many_in_the_window(gaps: list[float]) -> None:
    quarantine, now, times = Quarantine(POLICY), 0.0, list[float]()
    for gap in gaps:
        now += gap
        times.append(now)
        of_late = [at for at in times if now - at <= POLICY.window_s]
        assert quarantine.fail(now) == (len(of_late) >= POLICY.max_failures)
