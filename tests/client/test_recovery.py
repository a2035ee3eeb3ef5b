"""When a chat that was cut off goes on: every state and kind of failure, and the time it takes."""

from __future__ import annotations

import pytest

from outrider.client.recovery import Recovery, State
from outrider.client.transport.backoff import ReconnectPolicy
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


def in_state(state: State, policy: ReconnectPolicy | None = POLICY) -> Recovery:
    recovery = Recovery(policy)
    if state in (State.WAITING, State.RESUMING):
        assert recovery.failed(GONE, 0.0, cut_off=True, has_tokens=False, spread=1) is not None
    if state is State.RESUMING:
        recovery.sent()
    if state is State.OVER:
        recovery.end()
    assert recovery.state is state
    return recovery


def fails(recovery: Recovery, error: OutriderError, *, cut_off: bool, has_tokens: bool) -> bool:
    """Whether it is over then."""
    delay = recovery.failed(error, 1.0, cut_off=cut_off, has_tokens=has_tokens, spread=1)
    assert (delay is None) == (recovery.state is State.OVER)
    assert recovery.state in (State.OVER, State.WAITING)
    return delay is None


@pytest.mark.parametrize("has_tokens", [True, False])
@pytest.mark.parametrize("cut_off", [True, False])
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_every_state_and_failure(state: State, cut_off: bool, has_tokens: bool) -> None:
    def over(error: OutriderError) -> bool:
        return fails(in_state(state), error, cut_off=cut_off, has_tokens=has_tokens)

    is_over, is_first = state is State.OVER, state is State.RUNNING
    for error in (GONE, ReplicaLostError("gone")):
        assert over(error) == (is_over or (is_first and not cut_off and not has_tokens))
    assert over(DrainingError("stopping")) == is_over
    assert over(TWICE) == (is_over or is_first)
    assert over(EmptyPromptError("none"))
    assert over(OverloadedError("no room")) == (is_over or is_first)


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_every_state_and_answer(state: State) -> None:
    heard = in_state(state)
    assert heard.heard() == (state is State.RESUMING)
    assert heard.state is (State.RUNNING if state is State.RESUMING else state)
    sent = in_state(state)
    sent.sent()
    assert sent.state is (State.RESUMING if state is State.WAITING else state)


def test_without_a_policy_what_is_cut_off_is_over() -> None:
    recovery = Recovery(None)
    assert fails(recovery, GONE, cut_off=True, has_tokens=True)
    assert recovery.cut_at is None


def test_who_has_no_room_says_when_to_come_back() -> None:
    recovery = in_state(State.RESUMING)
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
    assert recovery.state is State.OVER


def test_progress_begins_the_time_anew() -> None:
    recovery = in_state(State.RESUMING)
    recovery.progressed()
    cut_at = recovery.cut_at
    assert cut_at == 0.0, "nothing can be new before something was heard"
    recovery.heard()
    recovery.progressed()
    assert recovery.cut_at is None
    assert recovery.failed(GONE, 100.0, cut_off=True, has_tokens=True, spread=1) == 1
