"""Times at which a process wakes up for what can wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.wake_ups import next_wake_up

NOW = st.floats(0.0, 1e6)
INTERVALS = st.sampled_from((0.01, 0.1, 0.5))
PHASES = st.floats(0.0, 1.0, exclude_max=True)


@given(NOW, INTERVALS, PHASES)
def test_who_wakes_up_in_time_wakes_up_once_an_interval(
    now: float, interval_s: float, phase: float
) -> None:
    due = next_wake_up(now, interval_s, phase)
    assert 0.249 * interval_s <= due - now <= 1.251 * interval_s
    for number in range(1, 5):
        after = next_wake_up(due, interval_s, phase)
        assert after == pytest.approx(due + interval_s, abs=1e-6), number
        due = after


@given(NOW, INTERVALS, PHASES, st.floats(-0.2, 0.7))
def test_a_timer_that_is_early_or_late_stays_in_step(
    now: float, interval_s: float, phase: float, off: float
) -> None:
    due = next_wake_up(now, interval_s, phase)
    called = due + off * interval_s
    assert next_wake_up(called, interval_s, phase) == pytest.approx(due + interval_s, abs=1e-6)


@given(NOW, NOW)
def test_all_of_a_process_wake_up_at_the_same_times(one: float, other: float) -> None:
    apart = (next_wake_up(one) - next_wake_up(other)) / 0.1
    assert apart == pytest.approx(round(apart), abs=1e-4)
