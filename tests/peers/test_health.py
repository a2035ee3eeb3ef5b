"""Health as a table: every pair of state and signal, and what time does; the circuit breaker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.peers.health import (
    TRANSITIONS,
    Change,
    HealthPolicy,
    PeerHealth,
    PeerState,
    Quarantine,
    QuarantinePolicy,
    Signal,
)
from outrider.v1 import router_pb2

C, R, S, D, G, Q, T = PeerState
POLICY = HealthPolicy(
    connect_s=3.0,
    suspect_s=5.0,
    quarantine=QuarantinePolicy(max_failures=2, window_s=10.0, first_s=2.0, max_s=60.0),
)

EXPECTED = {
    #            CONNECTING READY SUSPECT DOWN DRAINING QUARANTINED TRIAL
    Signal.CONNECTED: (R, R, R, R, R, Q, T),
    Signal.LOST: (D, D, D, D, D, D, D),
    Signal.SERVING: (C, R, R, D, R, Q, T),
    Signal.NOT_SERVING: (C, G, G, D, G, G, G),
    Signal.SILENT: (C, S, S, D, S, S, S),
    Signal.TIMEOUT: (D, R, D, D, G, T, T),
    Signal.CONDEMNED: (C, Q, S, D, G, Q, Q),
    Signal.CLEARED: (C, R, S, D, G, Q, R),
}


@pytest.mark.parametrize("signal", list(Signal))
@pytest.mark.parametrize("before", list(PeerState))
def test_every_pair_of_state_and_signal(signal: Signal, before: PeerState) -> None:
    after = EXPECTED[signal][before - 1]
    health = PeerHealth(POLICY, 1.0, before)
    assert health.signal(signal, 7.0) == (None if before is after else Change(before, after))
    assert health.state is after
    assert health.since == (1.0 if before is after else 7.0)


def test_the_table_is_total_and_the_states_are_the_wires() -> None:
    assert set(TRANSITIONS) == set(PeerState)
    assert all(set(row) == set(Signal) for row in TRANSITIONS.values())
    wire = {f"REPLICA_STATE_{state.name}": state.value for state in PeerState}
    assert {"REPLICA_STATE_UNSPECIFIED": 0} | wire == dict(router_pb2.ReplicaState.items())


@pytest.mark.parametrize(("state", "limit_s", "after"), [(C, 3.0, D), (S, 5.0, D), (Q, 2.0, T)])
def test_states_that_end_by_themselves(state: PeerState, limit_s: float, after: PeerState) -> None:
    health = PeerHealth(POLICY, 0.0, state)
    health.quarantine.begin(0.0)
    assert health.expire(limit_s - 0.01) is None
    assert health.expire(limit_s) == Change(state, after)


@pytest.mark.parametrize("state", [R, D, G, T])
def test_states_that_last(state: PeerState) -> None:
    assert PeerHealth(POLICY, 0.0, state).expire(1e6) is None


def test_only_ready_peers_take_sessions_and_those_on_trial_one() -> None:
    taking = [s for s in PeerState if PeerHealth(POLICY, 0.0, s).takes_sessions]
    assert taking == [R, T]
    health = PeerHealth(POLICY, 0.0, T)
    health.begin_session(1)
    assert not health.takes_sessions
    health.end_session(2)
    assert not health.takes_sessions
    health.end_session(1)  # it ended without a verdict
    assert health.takes_sessions


def test_half_open_the_trial_decides() -> None:
    health = PeerHealth(POLICY, 0.0, R)
    assert not health.fail(0.0)
    assert health.fail(1.0)
    assert health.condemn(1.0) == Change(R, Q)
    assert health.expire(3.0) == Change(Q, T)
    assert health.fail(30.0), "one failure is enough on trial"
    assert health.condemn(30.0) == Change(T, Q)
    assert health.expire(33.9) is None
    assert health.expire(34.0) == Change(Q, T)
    assert health.signal(Signal.CLEARED, 35.0) == Change(T, R)
    assert not health.quarantine.is_active


@pytest.mark.parametrize(
    "way",
    [
        (Signal.LOST, Signal.CONNECTED),
        (Signal.SILENT, Signal.SERVING),
        (Signal.NOT_SERVING, Signal.SERVING),
        (Signal.SILENT, Signal.NOT_SERVING, Signal.SERVING),
    ],
)
def test_no_way_around_leads_out_of_quarantine(way: tuple[Signal, ...]) -> None:
    health = PeerHealth(POLICY, 0.0, R)
    health.condemn(0.0)
    for signal in way:
        health.signal(signal, 1.0)
    assert health.state is Q
    assert health.expire(2.0) == Change(Q, T)


SEEN = [signal for signal in Signal if signal is not Signal.TIMEOUT]
"""What is observed; a timeout is given by `expire` alone, when it is due."""


@given(st.lists(st.tuples(st.sampled_from([*SEEN, "condemn", "expire"]), st.floats(0, 3))))
def test_who_is_condemned_is_ready_only_after_a_good_trial(
    steps: list[tuple[Signal | str, float]],
) -> None:
    health, now = PeerHealth(POLICY, 0.0), 0.0
    for step, passed in steps:
        now += passed
        if step == "condemn":
            health.condemn(now)
        elif step == "expire":
            health.expire(now)
        elif isinstance(step, Signal):
            health.signal(step, now)
        assert not (health.state is R and health.quarantine.is_active)
        assert not (health.state is T and now < health.quarantine.until)


BREAKER = QuarantinePolicy(max_failures=3, window_s=10.0, first_s=2.0, max_s=9.0)


def test_every_pause_in_a_row_is_twice_the_one_before_up_to_a_limit() -> None:
    quarantine = Quarantine(BREAKER)
    pauses = []
    now = 0.0
    for _ in range(4):
        quarantine.begin(now)
        pauses.append(quarantine.until - now)
        now = quarantine.until
    assert pauses == [2.0, 4.0, 8.0, 9.0]
    assert quarantine.count == 4


def test_who_fails_again_soon_after_a_good_trial_waits_longer() -> None:
    quarantine = Quarantine(BREAKER)
    quarantine.begin(0.0)
    quarantine.clear(2.0)
    assert not quarantine.is_active
    quarantine.begin(5.0)
    assert quarantine.until == 9.0
    quarantine.clear(9.0)
    quarantine.begin(19.5)  # the window has passed: as if it had never been
    assert quarantine.until == 21.5


def test_a_good_trial_forgets_the_failures() -> None:
    quarantine = Quarantine(BREAKER)
    for at in (0.0, 0.0):
        quarantine.fail(at)
    quarantine.begin(0.0)
    quarantine.clear(2.0)
    assert [quarantine.fail(3.0) for _ in range(3)] == [False, False, True]


@given(st.lists(st.floats(0.0, 20.0), max_size=30))
def test_too_many_means_that_many_in_the_window(gaps: list[float]) -> None:
    quarantine, now, times = Quarantine(BREAKER), 0.0, list[float]()
    for gap in gaps:
        now += gap
        times.append(now)
        of_late = [at for at in times if now - at <= BREAKER.window_s]
        assert quarantine.fail(now) == (len(of_late) >= BREAKER.max_failures)
