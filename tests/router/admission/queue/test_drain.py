"""How fast the queue moves, and what those are told who find no room."""

from __future__ import annotations

import pytest

from services.router.admission.queue.drain import FIRST_INTERVAL_S, MIN_SAMPLES, Drain


def moving(interval_s: float, count: int = 50) -> Drain:
    """A queue from which one session left every so often, until `interval_s * count`."""
    drain = Drain()
    for _ in range(count + 1):
        drain.joined(0.0)
    for turn in range(1, count + 1):
        drain.left(turn * interval_s)
    return drain


def test_it_learns_the_time_between_two_that_leave() -> None:
    assert Drain().interval_s(0.0) == FIRST_INTERVAL_S
    assert moving(0.1).interval_s(5.0) == pytest.approx(0.1)


def test_it_does_not_tell_before_it_knows() -> None:
    assert not moving(0.1, MIN_SAMPLES - 1).is_known
    assert moving(0.1, MIN_SAMPLES).is_known


def test_a_queue_that_stands_still_is_seen() -> None:
    assert moving(0.1).interval_s(5.0 + 8.0) == pytest.approx(2.0)


def test_time_in_which_nobody_waited_does_not_count() -> None:
    drain = moving(0.1)
    drain.gave_up()
    assert drain.interval_s(1000.0) == pytest.approx(0.1)
    drain.joined(1000.0)
    drain.left(1000.1)
    assert drain.interval_s(1000.1) == pytest.approx(0.1)


def test_those_who_are_refused_are_told_one_time_after_the_other() -> None:
    drain = moving(0.1)
    drain.gave_up()
    delays = [drain.promise_s(2.0, 5.0) for _ in range(3)]
    assert delays == pytest.approx([2.1, 2.2, 2.3])
    assert drain.promise_s(0.0, 60.0) == pytest.approx(0.1), "old promises are over"
