"""When a process that died is started again. Virtual time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.workers.restarts import RestartPolicy, Restarts

POLICY = RestartPolicy()


def test_pauses_double_up_to_the_longest() -> None:
    restarts, now, pauses = Restarts(POLICY, 0.0), 0.0, []
    for _ in range(8):
        now += 1.0
        pauses.append(restarts.died(now))
        now += pauses[-1]
        restarts.started(now)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert restarts.count == 8


def test_who_was_well_for_a_minute_begins_anew() -> None:
    restarts = Restarts(POLICY, 0.0)
    for now in (1.0, 2.0, 3.0):
        restarts.died(now)
        restarts.started(now)
    assert restarts.died(62.9) == 4.0
    restarts.started(70.0)
    assert restarts.died(130.0) == 0.5


def test_who_ends_soon_after_its_start_too_often_does_not_start() -> None:
    restarts = Restarts(POLICY, 0.0)
    verdicts = []
    for number in range(1, 4):
        restarts.died(float(number))
        restarts.started(float(number))
        verdicts.append(restarts.does_not_start)
    assert verdicts == [False, False, True]
    assert restarts.num_early == 3
    restarts.died(30.0)
    verdicts.append(restarts.does_not_start)
    assert not verdicts[-1], "it ran for a while"
    for now in (100.0, 200.0, 300.0):
        restarts.started(now)
        restarts.died(now + 50.0, was_ready=False)
    assert restarts.does_not_start, "it is slow to fail"


@given(st.lists(st.floats(0.0, 1000.0), max_size=50))
def test_it_is_always_started_again_within_the_longest_pause(runs_s: list[float]) -> None:
    restarts, now = Restarts(POLICY, 0.0), 0.0
    for ran_s in runs_s:
        now += ran_s
        pause_s = restarts.died(now)
        assert POLICY.first_pause_s <= pause_s <= POLICY.max_pause_s
        now += pause_s
        restarts.started(now)
    assert restarts.count == len(runs_s)
