"""Replicas that fail too often. Virtual time."""

from __future__ import annotations

from outrider.peers.health import Signal
from services.router.fleet.registry import Registry
from services.router.fleet.replica import ReplicaLoad
from tests.router.fleet.table import (
    MODEL,
    Q,
    R,
    T,
    changes,
    connected,
)


def test_a_replica_that_fails_often_is_left_alone_and_tried_with_one_session() -> None:
    table = connected("a", "b")
    table.failed("a", "no progress", 1.0)
    assert changes(table) == []
    table.failed("a", "no progress", 1.5)
    assert changes(table) == [("a", R, Q)]
    assert not table["a"].takes_sessions
    table.report("a", ReplicaLoad(), 3.0)
    table.expire(3.5)
    assert table["a"].state is T
    table.place("a", 7, 3.6)
    assert not table["a"].takes_sessions
    table.served("a", 6, 3.7)  # an older one
    assert table["a"].state is T
    table.served("a", 7, 3.8)
    assert table["a"].state is R


def test_connections_that_break_count_once_each_and_goodbyes_do_not() -> None:
    table = connected("a", "b")
    table.signal("a", Signal.NOT_SERVING, 0.5)
    table.lost("a", "", 1.0)
    for at in (2.0, 3.0):
        table.connected("a", MODEL, at)
        assert table["a"].state is R
        table.lost("a", "reset", at + 0.5)
        table.lost("a", "refused", at + 0.6)  # attempts in vain
    table.connected("a", MODEL, 4.0)
    assert table["a"].state is Q
    assert table["a"].health.quarantine.count == 1


def contradict(table: Registry, now: float) -> None:
    """It opens a session as another model than it reports, and is connected again."""
    table.contradicted("a", b"other", now)
    table.lost("a", "it opened as another", now)
    table.connected("a", MODEL, now)


def test_the_only_replica_that_contradicts_itself_is_tried_less_and_less_often() -> None:
    table = connected("a")
    contradict(table, 1.0)
    assert table["a"].state is R, "another process may have taken its place"
    for since, pause_s in ((1.0, 2.0), (3.0, 4.0), (7.0, 8.0)):
        contradict(table, since)
        assert table["a"].state is Q and table["a"].is_inconsistent
        for at, state in ((since + pause_s - 0.1, Q), (since + pause_s, T)):
            table.report("a", ReplicaLoad(), at)
            table.expire(at)
            assert table["a"].state is state
    assert table["a"].health.quarantine.count == 3, "its stream's end is not counted beside it"


def test_a_replica_that_agrees_with_itself_again_serves() -> None:
    table = connected("a")
    contradict(table, 1.0)
    contradict(table, 1.0)
    table.report("a", ReplicaLoad(), 3.0)
    table.expire(3.0)
    table.place("a", 7, 3.0)
    table.opened("a", 7, 0.0, 3.1)
    assert not table["a"].is_inconsistent and table["a"].state is T
    table.served("a", 7, 3.2)
    assert table["a"].state is R
    contradict(table, 60.0)
    assert table["a"].state is R, "it is a first time again"


def test_a_trial_that_ends_with_the_connection_has_failed() -> None:
    table = connected("a", "b")
    for _ in range(2):
        table.failed("a", "", 1.0)
    table.report("a", ReplicaLoad(), 3.0)
    table.expire(3.0)
    assert table["a"].state is T
    table.lost("a", "reset", 4.0)
    table.connected("a", MODEL, 4.5)
    table.expire(7.9)
    assert table["a"].state is not T, "the pause is twice as long"
    table.report("a", ReplicaLoad(), 8.0)
    table.expire(8.0)
    assert table["a"].state is T


def test_on_trial_there_may_soon_be_room_for_the_next_session_before_and_after_the_first() -> None:
    table = connected("a")
    table.hung("a", "no token for 2 s", 1.0)
    table.report("a", ReplicaLoad(), 3.0)
    table.expire(3.0)
    assert (table["a"].state, table["a"].takes_sessions) == (T, True)
    assert table["a"].may_return(2.0, 3.0), "a view of now is read later"
    table.place("a", 7, 3.0)
    assert not table["a"].takes_sessions
    assert table["a"].may_return(2.0, 3.0)
    table.leave("a", 3.0, "gone")
    assert not table["a"].may_return(2.0, 3.0)


def test_a_replica_that_hangs_is_left_alone_at_once_even_the_only_one() -> None:
    table = connected("a")
    table.hung("a", "no token for 2 s", 1.0)
    assert changes(table) == [("a", R, Q)]
    table.report("a", ReplicaLoad(), 1.1)
    table.probed("a", 1.0, serving=True, now=1.1)
    assert table["a"].state is Q
    table.expire(3.0)
    assert table["a"].state is T


def test_quarantine_leaves_half_of_a_models_replicas() -> None:
    alone = connected("a")
    for _ in range(5):
        alone.failed("a", "", 1.0)
    assert alone["a"].state is R
    table = connected("a", "b", "c", "d")
    for name in ("a", "b", "c", "d"):
        for _ in range(3):
            table.failed(name, "", 1.0)
    assert [replica.state for replica in table] == [Q, Q, R, R]


def test_what_breaks_by_this_routers_own_fault_is_no_failure_of_the_replica() -> None:
    table = connected("a", "b")
    for now in range(20):
        table.lost("a", "it was not read", float(now), is_own=True)
        table.connected("a", MODEL, now + 0.5)
        assert table["a"].state is R


def test_a_replica_that_was_lost_a_moment_ago_may_be_back() -> None:
    table = connected("a")
    assert not table["a"].may_return(2.0, 0.5), "it is there"
    table.lost("a", "reset", 1.0)
    table.lost("a", "refused", 2.0)  # an attempt in vain
    assert table["a"].may_return(2.0, 2.9)
    assert not table["a"].may_return(2.0, 3.0)
    table.leave("a", 3.0, "gone")
    assert not table["a"].may_return(9.0, 3.0)


def test_a_replica_that_lost_its_engine_is_waited_for_and_one_that_was_drained_is_not() -> None:
    table = connected("a", "b")
    table.report("a", ReplicaLoad(draining=True, is_restarting=True), 1.0)
    table.report("b", ReplicaLoad(draining=True), 1.0)
    assert table["a"].may_return(2.0, 1.5) and not table["b"].may_return(2.0, 1.5)
    table.lost("a", "it ended", 2.0)
    assert table["a"].may_return(2.0, 31.9), "starting takes longer than connecting anew"
    assert not table["a"].may_return(2.0, 32.0), "nobody started it"
    table.connected("a", MODEL, 40.0)
    table.lost("a", "reset", 41.0)
    assert not table["a"].may_return(2.0, 43.5), "what its earlier process said is over"
    table.leave("a", 44.0, "gone")
    assert not table["a"].may_return(2.0, 44.0)


def test_opens_that_were_under_way_while_the_router_was_late_measure_nothing() -> None:
    table = connected("a")
    table.place("a", 7, 1.0)
    table.was_late()
    table.opened("a", 7, 1.0, 1.1)
    assert not table["a"].rtt.is_measured
