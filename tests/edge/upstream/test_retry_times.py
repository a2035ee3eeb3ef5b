"""Waits between attempts to reach a replica, under virtual time."""

from __future__ import annotations

import pytest

from services.edge.upstream.retry_times import (
    FIRST_BACKOFF_S,
    MAX_BACKOFF_S,
    MAX_PEERS,
    RetryTimes,
)


def wait_s(times: RetryTimes, now: float, *, lasted_s: float = 0.0, jitter: float = 1.0) -> float:
    """From this loss to the next attempt, looked for in steps of 1/8 s."""
    times.lost("a", now, lasted_s=lasted_s, jitter=jitter)
    steps = 0
    while not times.may_try("a", now + steps / 8):
        steps += 1
    return steps / 8


def test_waits_grow_to_a_limit_and_begin_anew_after_a_stream_that_lasted() -> None:
    times, now, waits = RetryTimes(), 100.0, []
    for _ in range(9):
        waits.append(wait_s(times, now))
        now += waits[-1]
    doubled = [FIRST_BACKOFF_S * 2**n for n in range(9)]
    assert waits == [min(each, MAX_BACKOFF_S) for each in doubled]
    assert waits[-1] == MAX_BACKOFF_S
    assert wait_s(times, now, lasted_s=MAX_BACKOFF_S) == MAX_BACKOFF_S, "it did not last"
    now += MAX_BACKOFF_S
    assert wait_s(times, now, lasted_s=MAX_BACKOFF_S + 1) == FIRST_BACKOFF_S
    assert wait_s(times, now + FIRST_BACKOFF_S) == 2 * FIRST_BACKOFF_S
    now += 4 * MAX_BACKOFF_S
    assert wait_s(times, now) == FIRST_BACKOFF_S, "it was not needed for long"


@pytest.mark.parametrize("jitter", [0.5, 1.0])
def test_jitter_shortens_a_wait_and_not_its_growth(jitter: float) -> None:
    times = RetryTimes()
    first = wait_s(times, 0.0, jitter=jitter)
    assert (first, wait_s(times, first)) == (FIRST_BACKOFF_S * jitter, 2 * FIRST_BACKOFF_S)


def test_other_replicas_are_not_held_back() -> None:
    times = RetryTimes()
    times.lost("a", 0.0, lasted_s=0.0, jitter=1.0)
    assert times.may_try("b", 0.0) and not times.may_try("a", 0.0)


def test_what_is_remembered_is_bounded_and_forgotten() -> None:
    times = RetryTimes()
    for number in range(3 * MAX_PEERS):
        times.lost(str(number), number / 1e4, lasted_s=0.0, jitter=1.0)
        assert len(times) <= MAX_PEERS
    assert not times.may_try(str(3 * MAX_PEERS - 1), 0.1), "the newest is kept"
    times.lost("late", 2 * MAX_BACKOFF_S, lasted_s=0.0, jitter=1.0)
    assert len(times) == 1
