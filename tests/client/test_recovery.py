"""When a chat that was cut off goes on: every state and kind of failure, delays and limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.recovery import Attempts, ReconnectPolicy, Recovery, RecoveryState
from outrider.errors import (
    DrainingError,
    DuplicateSessionError,
    EmptyPromptError,
    OutriderError,
    OverloadedError,
    ReplicaLostError,
    UnavailableError,
)

POLICY = ReconnectPolicy(give_up_after_s=10, first_delay_s=1, max_delay_s=4)
GONE = UnavailableError("gone")
TWICE = DuplicateSessionError("it still runs")


def in_state(state: RecoveryState, policy: ReconnectPolicy | None = POLICY) -> Recovery:
    recovery = Recovery(policy)
    if state in (RecoveryState.WAITING, RecoveryState.RESUMING):
        assert recovery.failed(GONE, 0.0, cut_off=True, has_tokens=False, spread=1) is not None
    if state is RecoveryState.RESUMING:
        recovery.sent()
    if state is RecoveryState.OVER:
        recovery.end()
    assert recovery.state is state
    return recovery


def fails(recovery: Recovery, error: OutriderError, *, cut_off: bool, has_tokens: bool) -> bool:
    """Whether it is over then."""
    delay = recovery.failed(error, 1.0, cut_off=cut_off, has_tokens=has_tokens, spread=1)
    assert (delay is None) == (recovery.state is RecoveryState.OVER)
    assert recovery.state in (RecoveryState.OVER, RecoveryState.WAITING)
    return delay is None


@pytest.mark.parametrize("has_tokens", [True, False])
@pytest.mark.parametrize("cut_off", [True, False])
@pytest.mark.parametrize("state", RecoveryState, ids=lambda state: state.name)
def test_every_state_and_failure(state: RecoveryState, cut_off: bool, has_tokens: bool) -> None:
    def over(error: OutriderError) -> bool:
        return fails(in_state(state), error, cut_off=cut_off, has_tokens=has_tokens)

    is_over, is_first = state is RecoveryState.OVER, state is RecoveryState.RUNNING
    for error in (GONE, ReplicaLostError("gone")):
        assert over(error) == (is_over or (is_first and not cut_off and not has_tokens))
    assert over(DrainingError("stopping")) == is_over
    assert over(TWICE) == (is_over or is_first)
    assert over(EmptyPromptError("none"))
    assert over(OverloadedError("no room")) == (is_over or is_first)


@pytest.mark.parametrize("state", RecoveryState, ids=lambda state: state.name)
def test_every_state_and_answer(state: RecoveryState) -> None:
    heard = in_state(state)
    assert heard.heard() == (state is RecoveryState.RESUMING)
    assert heard.state is (RecoveryState.RUNNING if state is RecoveryState.RESUMING else state)
    sent = in_state(state)
    sent.sent()
    assert sent.state is (RecoveryState.RESUMING if state is RecoveryState.WAITING else state)


def test_without_a_policy_what_is_cut_off_is_over() -> None:
    recovery = Recovery(None)
    assert fails(recovery, GONE, cut_off=True, has_tokens=True)
    assert recovery.cut_at is None


def test_who_has_no_room_says_when_to_come_back() -> None:
    recovery = in_state(RecoveryState.RESUMING)
    busy = OverloadedError("no room", retry_delay_ms=3500)
    assert recovery.failed(busy, 1.0, cut_off=True, has_tokens=True, spread=0.5) == 3.5
    late = OverloadedError("no room", retry_delay_ms=60_000)
    assert recovery.failed(late, 1.0, cut_off=True, has_tokens=True, spread=0.5) is None


def test_time_runs_until_something_new_is_final() -> None:
    recovery = Recovery(POLICY)
    delays = []
    now = 0.0
    while True:
        delay = recovery.failed(GONE, now, cut_off=True, has_tokens=True, spread=1)
        if delay is None:
            break
        delays.append(delay)
        now += delay
        recovery.sent()
        assert recovery.heard()
    assert delays == [1, 2, 4]
    assert recovery.state is RecoveryState.OVER


def test_progress_begins_the_time_anew() -> None:
    recovery = in_state(RecoveryState.RESUMING)
    recovery.progressed()
    cut_at = recovery.cut_at
    assert cut_at == 0.0, "nothing can be new before something was heard"
    recovery.heard()
    recovery.progressed()
    assert recovery.cut_at is None
    assert recovery.failed(GONE, 100.0, cut_off=True, has_tokens=True, spread=1) == 1


BACKOFF = ReconnectPolicy(give_up_after_s=10, first_delay_s=0.1, max_delay_s=2)


def test_delays_double_up_to_the_longest() -> None:
    attempts = Attempts(BACKOFF)
    assert [attempts.next_delay(5.0) for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2]
    lost_at = attempts.lost_at
    attempts.worked()
    assert lost_at == 5.0
    assert attempts.lost_at is None
    assert attempts.next_delay(100.0) == 0.1


@given(st.floats(0, 1e6), st.lists(st.floats(0.5, 1.0), min_size=1, max_size=200))
def test_tries_end_in_time(lost_at: float, spreads: list[float]) -> None:
    attempts, now, tries = Attempts(BACKOFF), lost_at, 0
    for spread in spreads:
        delay = attempts.next_delay(now, spread)
        if delay is None:
            assert now + 2 * spread >= lost_at + 10
            break
        assert 0 < delay <= 2
        tries += 1
        now += delay
        assert now < lost_at + 10
    assert tries <= 20


def test_no_second_try_without_time() -> None:
    assert Attempts(ReconnectPolicy(give_up_after_s=0)).next_delay(1.0) is None
