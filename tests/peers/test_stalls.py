"""A clock that stands still while its process does: what is judged by it, over random stops."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.peers.stalls import StallDetector, StallPolicy

POLICY = StallPolicy()
ANSWER_S = 0.4
"""The way there and back, of a peer that is well."""
LIMIT_S = 1.0
"""A question without an answer for so long makes its peer suspect."""


@dataclass
class Loop:
    """An event loop that asks a peer a question every second, and is stopped now and then.

    After a stop the timers that are due run before what waits in the buffers: the worst order."""

    lateness: StallDetector
    now: float = 0.0
    read_s: float = 0.05
    """Time that a loop that was stopped takes until it has read what waits."""

    def run(self, stops: list[tuple[float, float]], until: float, dies_at: float) -> float | None:
        """When the peer is found silent, as awake seconds after the question; None: it is not.
        `stops` are (awake seconds before it, how long)."""
        turns = [(stop_at, lasts_s) for stop_at, lasts_s in stops]
        woke_at = asked_at = asked_on_clock = 0.0
        is_answered = False
        while self.now < until:
            if turns and self.now - woke_at >= turns[0][0]:
                self.now += turns.pop(0)[1]
                woke_at = self.now
            clock = self.lateness.tick(self.now)
            if not is_answered and clock - asked_on_clock >= LIMIT_S:
                return self.now - asked_at
            answer_at = asked_at + ANSWER_S
            has_come = answer_at <= self.now and answer_at < dies_at
            if has_come and self.now - woke_at >= self.read_s:
                is_answered = True
            if is_answered and clock - asked_on_clock >= LIMIT_S:
                asked_at, asked_on_clock, is_answered = self.now, clock, False
            self.now = round(self.now + POLICY.interval_s, 6)
        return None


stopped = st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(1.0, 60.0)), max_size=8)
late = st.lists(st.tuples(st.floats(1.1, 3.0), st.floats(0.01, 0.99)), max_size=20)


@given(st.one_of(stopped, late))
def test_no_peer_that_answers_is_found_silent(stops: list[tuple[float, float]]) -> None:
    loop = Loop(StallDetector(0.0))
    until = 20.0 + sum(sum(stop) for stop in stops)
    assert loop.run(stops, until, dies_at=float("inf")) is None


@given(st.floats(0.0, 10.0))
def test_a_dead_peer_is_found_in_the_time_of_a_loop_that_is_awake(dies_at: float) -> None:
    found_s = Loop(StallDetector(0.0)).run([], 30.0, dies_at)
    assert found_s is not None
    assert found_s <= LIMIT_S + 2 * POLICY.interval_s


@given(stopped)
def test_a_dead_peer_is_found_whatever_stops(stops: list[tuple[float, float]]) -> None:
    """Each stop costs what it lasts, and the rest after it."""
    until = 10.0 + sum(before_s + lasts_s + POLICY.settle_s for before_s, lasts_s in stops)
    assert Loop(StallDetector(0.0)).run(stops, until, dies_at=0.0) is not None


def test_a_loop_that_is_always_late_still_finds_the_dead() -> None:
    """By less than a second each time: at least a tenth of the time counts."""
    lateness = StallDetector(0.0)
    readings = [lateness.tick(0.4 * turn) for turn in range(1000)]
    assert readings[-1] >= 400.0 / 10


def _readings(turn_s: float, num_turns: int) -> list[float]:
    """After each turn of a loop whose turns take so long."""
    lateness, now, due_at, readings = StallDetector(0.0), 0.0, POLICY.interval_s, [0.0]
    for _ in range(num_turns):
        now += turn_s
        if now >= due_at:
            readings.append(lateness.tick(now))
            due_at = now + POLICY.interval_s
        else:
            readings.append(lateness.observe(now))
    return readings


@given(st.floats(0.16, 0.99))
def test_what_takes_a_late_loop_ten_turns_is_not_late(turn_s: float) -> None:
    readings = _readings(turn_s, 100)
    assert all(last - first < LIMIT_S for first, last in zip(readings, readings[10:], strict=False))


@given(st.floats(0.001, POLICY.late_s - 0.001))
def test_the_clock_of_a_loop_that_keeps_up_is_as_fast_as_time(turn_s: float) -> None:
    assert _readings(turn_s, 100)[-1] == pytest.approx(100 * turn_s)


@given(st.lists(st.floats(0.0, 5.0), max_size=50))
def test_the_clock_neither_runs_ahead_nor_back(gaps: list[float]) -> None:
    lateness, now, before = StallDetector(7.0), 7.0, 7.0
    for gap_s in gaps:
        now += gap_s
        reading = lateness.tick(now)
        assert before <= reading <= now
        assert reading - before <= POLICY.interval_s + POLICY.late_s + 1e-9
        assert lateness.stalled_s == pytest.approx(now - reading)
        before = reading
    assert lateness.observe(0.0) == before, "a clock that is set back"


def test_what_breaks_a_moment_after_a_stop_broke_for_that() -> None:
    lateness = StallDetector(0.0)
    lateness.tick(0.1)
    verdicts = [lateness.stalled_recently]
    for tenth in range(100):
        lateness.tick(15.0 + tenth / 10)
        verdicts.append(lateness.stalled_recently)
    assert verdicts[:2] == [False, True]
    assert sum(verdicts) / 10 == pytest.approx(POLICY.settle_s + POLICY.blame_s, abs=0.2)
