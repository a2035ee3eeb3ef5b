"""Every (state, input) pair of a relayed session's life."""

from __future__ import annotations

import pytest

from services.router.relay.lifecycle import TRANSITIONS, Action, Input, State

P, Q, O = State.PLACING, State.QUEUED, State.OPENING  # noqa: E741
S, C, E = State.STREAMING, State.CLOSING, State.ENDED

# Input: what happens in PLACING, OPENING, STREAMING, CLOSING; None cannot happen there.
EXPECTED = {
    Input.DRAFT: (
        (P, Action.KEEP),
        (O, Action.KEEP_AND_SEND_UP),
        (S, Action.SEND_UP),
        (C, Action.DROP),
    ),
    Input.CANCEL: (
        (E, Action.ANSWER),
        (C, Action.SEND_UP),
        (C, Action.SEND_UP),
        (C, Action.DROP),
    ),
    Input.EDGE_LOST: (
        (E, Action.DROP),
        (E, Action.CANCEL_UP),
        (E, Action.CANCEL_UP),
        (E, Action.DROP),
    ),
    Input.QUEUED: ((Q, Action.DROP), None, None, None),
    Input.PLACED: ((O, Action.OPEN_UP), None, None, None),
    Input.ABORT: (
        (E, Action.ANSWER),
        (E, Action.CANCEL_AND_ANSWER),
        (E, Action.CANCEL_AND_ANSWER),
        (E, Action.ANSWER),
    ),
    Input.OPENED: (None, (O, Action.SEND_DOWN), (S, Action.SEND_DOWN), (C, Action.SEND_DOWN)),
    Input.COMMIT: (None, (S, Action.SEND_DOWN), (S, Action.SEND_DOWN), (C, Action.SEND_DOWN)),
    Input.DONE: (None, (E, Action.SEND_DOWN), (E, Action.SEND_DOWN), (E, Action.SEND_DOWN)),
    Input.ERROR: (None, (E, Action.SEND_DOWN), (E, Action.SEND_DOWN), (E, Action.SEND_DOWN)),
    Input.LEFT: (None, (P, Action.MOVE), (P, Action.MOVE), None),
    Input.LOST: (None, (E, Action.ANSWER), (E, Action.ANSWER), (E, Action.ANSWER)),
}


def test_the_expectation_names_every_input() -> None:
    assert set(EXPECTED) == set(Input)
    assert set(TRANSITIONS) == set(State)


@pytest.mark.parametrize("event", list(Input))
@pytest.mark.parametrize("column", range(4))
def test_every_pair(event: Input, column: int) -> None:
    state = (P, O, S, C)[column]
    assert TRANSITIONS[state].get(event) == EXPECTED[event][column]


def test_a_queued_session_is_one_that_is_being_placed_but_for_the_queue() -> None:
    placing = dict(TRANSITIONS[P])
    placing.pop(Input.QUEUED)
    placing[Input.DRAFT] = (Q, Action.KEEP)
    assert TRANSITIONS[Q] == placing


def test_nothing_happens_to_an_ended_session() -> None:
    assert TRANSITIONS[E] == {}


def test_whoever_ends_a_session_tells_the_edge_unless_it_is_gone() -> None:
    for state, row in TRANSITIONS.items():
        for event, (after, action) in row.items():
            if after is E and event is not Input.EDGE_LOST:
                assert action in (Action.SEND_DOWN, Action.ANSWER, Action.CANCEL_AND_ANSWER), (
                    state,
                    event,
                )
