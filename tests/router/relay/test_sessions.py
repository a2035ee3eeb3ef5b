"""The session table: numbers, limits, what is kept, and a random walk against its invariants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import DuplicateSessionError, OverloadedError
from services.router.relay.lifecycle import TRANSITIONS, Action, Input, State
from services.router.relay.sessions import RelayLimits, Session, SessionTable

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
    return sessions.open(edge, number, "open", 10, now=0.0)


def test_edges_may_use_the_same_numbers() -> None:
    sessions = table()
    one, two = sessions.attach_edge(), sessions.attach_edge()
    first, second = opened(sessions, one, 7), opened(sessions, two, 7)
    assert first.relayed != second.relayed
    assert sessions.of_edge(one, 7) is first
    assert sessions.of_edge(two, 7) is second
    assert sessions.of_edge(one, 8) is None


def test_a_number_is_free_again_after_its_session() -> None:
    sessions = table()
    edge = sessions.attach_edge()
    first = opened(sessions, edge)
    with pytest.raises(DuplicateSessionError, match="Session 1"):
        opened(sessions, edge)
    sessions.advance(first, Input.CANCEL, 0.0)
    assert opened(sessions, edge).relayed != first.relayed


def test_a_replica_reaches_its_own_sessions_alone() -> None:
    sessions = table()
    edge, mine, other = sessions.attach_edge(), sessions.attach_stream(), sessions.attach_stream()
    session = opened(sessions, edge)
    assert sessions.bind(session, mine, "a", 0.0) is Action.OPEN_UP
    assert sessions.of_stream(mine, session.relayed) is session
    assert sessions.of_stream(other, session.relayed) is None
    assert sessions.of_stream(999, session.relayed) is None


def test_a_moved_session_leaves_its_replica_and_keeps_its_edges_number() -> None:
    sessions = table()
    edge, first, second = sessions.attach_edge(), sessions.attach_stream(), sessions.attach_stream()
    session = opened(sessions, edge)
    sessions.bind(session, first, "a", 0.0)
    leg = session.leg
    assert sessions.advance(session, Input.LEFT, 0.0) is Action.MOVE
    assert sessions.of_stream(first, leg) is None
    assert session.open == "open"
    sessions.bind(session, second, "b", 0.0)
    assert session.leg != leg, "a late frame of the first leg means nobody"
    assert sessions.of_stream(second, session.leg) is session
    assert sessions.of_edge(edge, 1) is session
    assert session.tried == ["a", "b"]
    sessions.committed(session, 3, b"abc")
    assert session.tried == ["b"], "what was tried before a token may be tried again"


def test_what_is_committed_is_kept_and_drafts_are_not() -> None:
    sessions = table()
    edge, stream = sessions.attach_edge(), sessions.attach_stream()
    session = opened(sessions, edge)
    sessions.bind(session, stream, "a", 0.0)
    assert [sessions.keep(session, f"draft {n}", 5) for n in range(3)] == [True, True, False]
    assert session.kept == ["draft 0", "draft 1"]
    sessions.check_invariants()
    sessions.committed(session, 2, b"12")
    sessions.advance(session, Input.COMMIT, 0.0)
    sessions.committed(session, 3, b"3")
    assert (session.open, session.kept, session.kept_bytes) == ("open", [], 13)
    assert (session.upto, bytes(session.committed)) == (3, b"123")
    sessions.check_invariants()
    sessions.committed(session, 4, None)
    assert (session.open, bytes(session.committed), session.kept_bytes) == (None, b"", 0)
    assert session.upto == 4
    sessions.check_invariants()


def test_drafts_of_an_older_epoch_give_way() -> None:
    sessions = table()
    edge, stream = sessions.attach_edge(), sessions.attach_stream()
    session = opened(sessions, edge)
    sessions.bind(session, stream, "a", 0.0)
    for n in range(2):
        assert sessions.keep(session, f"old {n}", 5)
    sessions.begin_epoch(session, 0)
    assert session.kept == ["old 0", "old 1"], "the same epoch goes on"
    before = session.kept_bytes
    sessions.begin_epoch(session, 1)
    assert (session.epoch, session.kept, session.kept_bytes) == (1, [], before - 10)
    assert sessions.keep(session, "new", 5), "the room is the newer epoch's"
    sessions.begin_epoch(session, 0)
    assert (session.epoch, session.kept) == (1, ["new"]), "a late frame of the old one ends nothing"
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
    edge, stream = sessions.attach_edge(), sessions.attach_stream()
    session = sessions.open(edge, 1, "open", 900, now=0.0)
    with pytest.raises(OverloadedError, match="900 bytes"):
        sessions.open(edge, 2, "open", 101, now=0.0)
    assert not sessions.keep(session, "draft", 101)
    assert sessions.keep(session, "draft", 100)
    sessions.bind(session, stream, "a", 0.0)
    sessions.committed(session, 1, b"")
    sessions.advance(session, Input.COMMIT, 0.0)
    other = sessions.open(edge, 2, "open", 1000, now=0.0)
    assert session.open is None, "the oldest that has tokens makes room"
    sessions.bind(other, stream, "a", 0.0)
    sessions.committed(other, 1, b"1")
    assert other.open is None, "no room for its tokens, and none with tokens but itself"
    sessions.check_invariants()


def test_a_cancel_without_answer_expires() -> None:
    sessions = table()
    edge, stream = sessions.attach_edge(), sessions.attach_stream()
    silent, answered = opened(sessions, edge, 1), opened(sessions, edge, 2)
    for session in (silent, answered):
        sessions.bind(session, stream, "a", 0.0)
        sessions.advance(session, Input.CANCEL, now=1.0)
    sessions.advance(answered, Input.DONE, now=2.0)
    assert sessions.expire(5.9) == []
    assert sessions.expire(6.0) == [silent]
    assert sessions.expire(6.0) == []


def test_both_sides_list_their_sessions() -> None:
    sessions = table()
    edge, stream = sessions.attach_edge(), sessions.attach_stream()
    here, waiting = opened(sessions, edge, 1), opened(sessions, edge, 2)
    sessions.bind(here, stream, "a", 0.0)
    assert sessions.edge_sessions(edge) == [here, waiting]
    assert sessions.detach_stream(stream) == [here]
    assert sessions.detach_stream(stream) == []
    with pytest.raises(AssertionError):
        sessions.forget_edge(edge)
    sessions.advance(here, Input.LOST, 0.0)
    sessions.advance(waiting, Input.EDGE_LOST, 0.0)
    sessions.forget_edge(edge)
    assert len(sessions) == 0
    sessions.check_invariants()


def open_some(
    sessions: SessionTable[str], data: st.DataObject, edges: list[int], now: float
) -> list[Session[str]]:
    edge, number = data.draw(st.sampled_from(edges)), data.draw(st.integers(1, 4))
    try:
        return [sessions.open(edge, number, "open", data.draw(st.integers(1, 300)), now)]
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
        sessions.committed(session, session.upto + 1, data.draw(st.binary(max_size=300)))
    sessions.advance(session, event, now)
    if session.state is State.OPENING:
        sessions.keep(session, "draft", data.draw(st.integers(1, 300)))


@given(st.data())
def test_any_walk_keeps_the_invariants_and_ends_empty(data: st.DataObject) -> None:
    sessions = table(max_sessions_per_edge=8)
    edges = [sessions.attach_edge() for _ in range(3)]
    streams = [sessions.attach_stream() for _ in range(2)]
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
        live = [session for session in live if session.state is not State.ENDED]
        sessions.check_invariants()
        assert len(sessions) == len(live)
    for edge in edges:
        for session in sessions.edge_sessions(edge):
            sessions.advance(session, Input.EDGE_LOST, now)
        sessions.forget_edge(edge)
    sessions.check_invariants()
    assert len(sessions) == 0
