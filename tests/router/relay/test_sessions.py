"""Every pair of state and input; the session table: ids, limits, what is kept, a random walk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import DuplicateSessionError, OverloadedError
from services.router.relay.sessions import (
    TRANSITIONS,
    RelayLimits,
    Session,
    SessionAction,
    SessionInput,
    SessionState,
    SessionTable,
)
from services.router.session_request import SessionRequest

REQUEST = SessionRequest("m")
Action = SessionAction
Input = SessionInput
PLACING, QUEUED, OPENING = SessionState.PLACING, SessionState.QUEUED, SessionState.OPENING
STREAMING, CLOSING, ENDED = SessionState.STREAMING, SessionState.CLOSING, SessionState.ENDED

EXPECTED = {
    Input.DRAFT: {
        PLACING: (PLACING, Action.KEEP),
        QUEUED: (QUEUED, Action.KEEP),
        OPENING: (OPENING, Action.KEEP_AND_SEND_UP),
        STREAMING: (STREAMING, Action.SEND_UP),
        CLOSING: (CLOSING, Action.DROP),
    },
    Input.CANCEL: {
        PLACING: (ENDED, Action.ANSWER),
        QUEUED: (ENDED, Action.ANSWER),
        OPENING: (CLOSING, Action.SEND_UP),
        STREAMING: (CLOSING, Action.SEND_UP),
        CLOSING: (CLOSING, Action.DROP),
    },
    Input.EDGE_LOST: {
        PLACING: (ENDED, Action.DROP),
        QUEUED: (ENDED, Action.DROP),
        OPENING: (ENDED, Action.CANCEL_UP),
        STREAMING: (ENDED, Action.CANCEL_UP),
        CLOSING: (ENDED, Action.DROP),
    },
    Input.QUEUED: {PLACING: (QUEUED, Action.DROP)},
    Input.PLACED: {
        PLACING: (OPENING, Action.OPEN_UP),
        QUEUED: (OPENING, Action.OPEN_UP),
    },
    Input.ABORT: {
        PLACING: (ENDED, Action.ANSWER),
        QUEUED: (ENDED, Action.ANSWER),
        OPENING: (ENDED, Action.CANCEL_AND_ANSWER),
        STREAMING: (ENDED, Action.CANCEL_AND_ANSWER),
        CLOSING: (ENDED, Action.ANSWER),
    },
    Input.OPENED: {
        OPENING: (OPENING, Action.SEND_DOWN),
        STREAMING: (STREAMING, Action.SEND_DOWN),
        CLOSING: (CLOSING, Action.SEND_DOWN),
    },
    Input.COMMIT: {
        OPENING: (STREAMING, Action.SEND_DOWN),
        STREAMING: (STREAMING, Action.SEND_DOWN),
        CLOSING: (CLOSING, Action.SEND_DOWN),
    },
    Input.DONE: {
        OPENING: (ENDED, Action.SEND_DOWN),
        STREAMING: (ENDED, Action.SEND_DOWN),
        CLOSING: (ENDED, Action.SEND_DOWN),
    },
    Input.ERROR: {
        OPENING: (ENDED, Action.SEND_DOWN),
        STREAMING: (ENDED, Action.SEND_DOWN),
        CLOSING: (ENDED, Action.SEND_DOWN),
    },
    Input.LEFT: {
        OPENING: (PLACING, Action.MOVE),
        STREAMING: (PLACING, Action.MOVE),
    },
    Input.LOST: {
        OPENING: (ENDED, Action.ANSWER),
        STREAMING: (ENDED, Action.ANSWER),
        CLOSING: (ENDED, Action.ANSWER),
    },
}
"""What an input does in each state; pairs left out cannot happen."""


@pytest.mark.parametrize("event", list(Input))
@pytest.mark.parametrize("state", list(SessionState))
def test_every_pair(event: SessionInput, state: SessionState) -> None:
    assert TRANSITIONS[state].get(event) == EXPECTED[event].get(state)


LIMITS = RelayLimits(
    max_sessions=8,
    max_sessions_per_edge=3,
    max_early_frames=2,
    max_kept_bytes=1000,
    cancel_timeout_s=5.0,
)


def table(**limits: Any) -> SessionTable[str]:
    return SessionTable(replace(LIMITS, **limits))


def opened(sessions: SessionTable[str], edge: int, number: int = 1) -> Session[str]:
    return sessions.open(edge, number, REQUEST, "open", 10, now=0.0)


def test_a_number_is_free_again_after_its_session() -> None:
    sessions = table()
    edge = sessions.attach_edge()
    first = opened(sessions, edge)
    with pytest.raises(DuplicateSessionError, match="session 1"):
        opened(sessions, edge)
    sessions.advance(first, Input.CANCEL, 0.0)
    assert opened(sessions, edge).router_session_id != first.router_session_id


def test_a_replica_reaches_its_own_sessions_alone() -> None:
    sessions = table()
    edge, mine, other = sessions.attach_edge(), sessions.attach_replica(), sessions.attach_replica()
    session = opened(sessions, edge)
    assert sessions.bind(session, mine, "a", 0.0) is Action.OPEN_UP
    assert sessions.on_stream(mine).get(session.router_session_id) is session
    assert sessions.on_stream(other).get(session.router_session_id) is None
    assert sessions.on_stream(999).get(session.router_session_id) is None


def test_a_moved_session_leaves_its_replica_and_keeps_its_edges_number() -> None:
    sessions = table()
    edge = sessions.attach_edge()
    first, second = sessions.attach_replica(), sessions.attach_replica()
    session = opened(sessions, edge)
    sessions.bind(session, first, "a", 0.0)
    first_id = session.upstream_session_id
    assert sessions.advance(session, Input.LEFT, 0.0) is Action.MOVE
    assert sessions.on_stream(first).get(first_id) is None
    assert session.open_frame == "open"
    sessions.bind(session, second, "b", 0.0)
    assert session.upstream_session_id != first_id, "a late frame of the first means nobody"
    assert sessions.on_stream(second).get(session.upstream_session_id) is session
    assert sessions.of_edge(edge, 1) is session
    assert session.tried_replicas == ["a", "b"]
    sessions.commit(session, 3, b"abc")
    assert session.tried_replicas == ["b"], "what was tried before a token may be tried again"


def test_what_is_committed_is_kept_and_drafts_are_not() -> None:
    sessions = table()
    edge, stream = sessions.attach_edge(), sessions.attach_replica()
    session = opened(sessions, edge)
    sessions.bind(session, stream, "a", 0.0)
    assert [sessions.keep_draft(session, f"draft {n}", 5) for n in range(3)] == [True, True, False]
    replay = session.replay
    assert replay is not None
    assert replay.drafts == ["draft 0", "draft 1"]
    sessions.check_invariants()
    sessions.commit(session, 2, b"12")
    sessions.advance(session, Input.COMMIT, 0.0)
    sessions.commit(session, 3, b"3")
    assert (replay.open_frame, replay.drafts, replay.num_bytes) == ("open", [], 13)
    assert (session.num_committed, bytes(replay.committed)) == (3, b"123")
    sessions.check_invariants()
    sessions.commit(session, 4, None)
    assert session.replay is None
    assert session.num_committed == 4
    sessions.check_invariants()


def test_drafts_of_an_older_epoch_give_way() -> None:
    sessions = table()
    edge, stream = sessions.attach_edge(), sessions.attach_replica()
    session = opened(sessions, edge)
    sessions.bind(session, stream, "a", 0.0)
    for n in range(2):
        assert sessions.keep_draft(session, f"old {n}", 5)
    sessions.begin_epoch(session, 0)
    replay = session.replay
    assert replay is not None
    assert replay.drafts == ["old 0", "old 1"], "the same epoch goes on"
    before = replay.num_bytes
    sessions.begin_epoch(session, 1)
    assert (session.epoch, replay.drafts, replay.num_bytes) == (1, [], before - 10)
    assert sessions.keep_draft(session, "new", 5), "the room is the newer epoch's"
    sessions.begin_epoch(session, 0)
    assert (session.epoch, replay.drafts) == (1, ["new"]), (
        "a late frame of the old one ends nothing"
    )
    sessions.check_invariants()


def test_limits_are_overload() -> None:
    sessions = table(max_sessions=4)
    edges = [sessions.attach_edge() for _ in range(2)]
    for number in range(3):
        opened(sessions, edges[0], number + 1)
    with pytest.raises(OverloadedError, match="stream carries 3"):
        opened(sessions, edges[0], 9)
    opened(sessions, edges[1], 1)
    with pytest.raises(OverloadedError, match="relays 4"):
        opened(sessions, edges[1], 2)
    assert len(sessions) == 4


def test_kept_bytes_are_bounded() -> None:
    sessions = table()
    edge, stream = sessions.attach_edge(), sessions.attach_replica()
    session = sessions.open(edge, 1, REQUEST, "open", 900, now=0.0)
    with pytest.raises(OverloadedError, match="900 bytes"):
        sessions.open(edge, 2, REQUEST, "open", 101, now=0.0)
    assert not sessions.keep_draft(session, "draft", 101)
    assert sessions.keep_draft(session, "draft", 100)
    sessions.bind(session, stream, "a", 0.0)
    sessions.commit(session, 1, b"")
    sessions.advance(session, Input.COMMIT, 0.0)
    other = sessions.open(edge, 2, REQUEST, "open", 1000, now=0.0)
    assert session.replay is None, "the oldest that has tokens makes room"
    sessions.bind(other, stream, "a", 0.0)
    sessions.commit(other, 1, b"1")
    assert other.replay is None, "no room for its tokens, and none with tokens but itself"
    sessions.check_invariants()


def test_a_cancel_without_answer_expires() -> None:
    sessions = table()
    edge, stream = sessions.attach_edge(), sessions.attach_replica()
    silent, answered = opened(sessions, edge, 1), opened(sessions, edge, 2)
    for session in (silent, answered):
        sessions.bind(session, stream, "a", 0.0)
        sessions.advance(session, Input.CANCEL, now=1.0)
    sessions.advance(answered, Input.DONE, now=2.0)
    assert sessions.expire(5.9) == []
    assert sessions.expire(6.0) == [silent]
    assert sessions.expire(6.0) == []


def open_some(
    sessions: SessionTable[str], data: st.DataObject, edges: list[int], now: float
) -> list[Session[str]]:
    edge, number = data.draw(st.sampled_from(edges)), data.draw(st.integers(1, 4))
    try:
        num_bytes, model = data.draw(st.integers(1, 300)), data.draw(st.sampled_from("ab"))
        return [sessions.open(edge, number, SessionRequest(model), "open", num_bytes, now)]
    except (DuplicateSessionError, OverloadedError):
        return []


def advance_some(
    sessions: SessionTable[str],
    data: st.DataObject,
    live: list[Session[str]],
    streams: list[int],
    now: float,
) -> None:
    session = data.draw(st.sampled_from(live))
    event = data.draw(st.sampled_from(sorted(TRANSITIONS[session.state])))
    if event is Input.PLACED:
        sessions.bind(session, data.draw(st.sampled_from(streams)), "a", now)
        return
    if event is Input.COMMIT:
        sessions.commit(session, session.num_committed + 1, data.draw(st.binary(max_size=300)))
    sessions.advance(session, event, now)
    if session.state is SessionState.OPENING:
        sessions.keep_draft(session, "draft", data.draw(st.integers(1, 300)))


@given(st.data())
def test_any_walk_keeps_the_invariants_and_ends_empty(data: st.DataObject) -> None:
    sessions = table(max_sessions_per_edge=8)
    edges = [sessions.attach_edge() for _ in range(3)]
    streams = [sessions.attach_replica() for _ in range(2)]
    live: list[Session[str]] = []
    now = 0.0
    for _ in range(data.draw(st.integers(0, 60))):
        now += data.draw(st.floats(0, 3))
        if not live or data.draw(st.booleans()):
            live += open_some(sessions, data, edges, now)
        else:
            advance_some(sessions, data, live, streams, now)
        for late in sessions.expire(now):
            sessions.advance(late, Input.ABORT, now)
        live = [session for session in live if session.state is not SessionState.ENDED]
        sessions.check_invariants()
        assert len(sessions) == len(live)
    for edge in edges:
        for session in sessions.edge_sessions(edge):
            sessions.advance(session, Input.EDGE_LOST, now)
        sessions.detach_edge(edge)
    sessions.check_invariants()
    assert len(sessions) == 0
