"""Life signs: every state and input, and how soon a silent edge is given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.liveness import LinkAction, LinkState, Liveness, LivenessLimits

LIMITS = LivenessLimits(busy_s=3, idle_s=10, answer_s=2)


def in_state(state: LinkState) -> Liveness:
    liveness = Liveness(LIMITS, 0.0)
    now = 0.0
    while liveness.state is not state:
        at = liveness.next_check(busy=True)
        assert at is not None
        liveness.check(at, busy=True)
        now = at
    liveness._since = 0.0
    assert now <= 7.0
    return liveness


# state: after silence (and what to do), after a sign of life, after a move of its own
EXPECTED = {
    LinkState.HEARD: (LinkState.ASKED, LinkAction.PING, LinkState.HEARD, LinkState.MOVED),
    LinkState.ASKED: (LinkState.MOVED, LinkAction.MIGRATE, LinkState.HEARD, LinkState.MOVED),
    LinkState.MOVED: (LinkState.DEAD, LinkAction.GIVE_UP, LinkState.HEARD, LinkState.MOVED),
    LinkState.DEAD: (LinkState.DEAD, LinkAction.WAIT, LinkState.DEAD, LinkState.DEAD),
}


@pytest.mark.parametrize("state", LinkState, ids=lambda state: state.name)
@pytest.mark.parametrize("busy", [True, False])
def test_every_state_and_input(state: LinkState, busy: bool) -> None:
    after_silence, verdict, after_sign, after_move = EXPECTED[state]
    silent = in_state(state)
    due = silent.next_check(busy)
    waits = {LinkState.HEARD: 3.0 if busy else 10.0, LinkState.DEAD: None}.get(state, 2.0)
    assert due == waits
    if due is not None:
        assert silent.check(due - 0.001, busy) is LinkAction.WAIT
        assert silent.state is state
    assert silent.check(100.0, busy) is verdict
    assert silent.state is after_silence
    heard = in_state(state)
    heard.heard(1.0)
    assert heard.state is after_sign
    moved = in_state(state)
    moved.moved(1.0)
    assert moved.state is after_move


def test_a_silent_edge_is_given_up_within_seven_seconds() -> None:
    liveness = Liveness(LIMITS, 0.0)
    history = []
    while (at := liveness.next_check(busy=True)) is not None:
        history.append((at, liveness.check(at, busy=True)))
    assert history == [
        (3.0, LinkAction.PING),
        (5.0, LinkAction.MIGRATE),
        (7.0, LinkAction.GIVE_UP),
    ]


@given(st.lists(st.tuples(st.floats(0.01, 1.9), st.booleans()), max_size=50))
def test_an_edge_that_is_heard_in_time_is_never_left(steps: list[tuple[float, bool]]) -> None:
    liveness, now = Liveness(LIMITS, 0.0), 0.0
    for pause, busy in steps:
        now += pause
        assert liveness.check(now, busy) in (LinkAction.WAIT, LinkAction.PING)
        liveness.heard(now)
        assert liveness.state is LinkState.HEARD


@given(
    st.lists(st.floats(0.3, 100.0), max_size=5),
    st.sampled_from([LinkState.HEARD, LinkState.ASKED, LinkState.MOVED]),
)
def test_a_client_that_was_late_listens_before_it_judges(
    stops: list[float], state: LinkState
) -> None:
    liveness, now = in_state(state), 0.0
    for stop_s in stops:
        due = liveness.next_check(busy=True)
        assert due is not None
        now = due + stop_s
        assert liveness.check(now, busy=True, late_s=stop_s) is LinkAction.WAIT
        assert liveness.state is state
        again_at = liveness.next_check(busy=True)
        assert again_at == pytest.approx(now + LIMITS.settle_s)
    due = liveness.next_check(busy=True)
    assert due is not None
    assert liveness.check(due + 0.01, busy=True, late_s=0.01) is EXPECTED[state][1]
