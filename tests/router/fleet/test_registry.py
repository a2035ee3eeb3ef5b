"""The replica table: who there is, what is heard of it, what becomes of sessions. Virtual time."""

from __future__ import annotations

import pytest

from outrider.errors import UnavailableError
from services.router.fleet.replica import ReplicaIdentity, ReplicaLoad, ServedModel
from tests.router.fleet.table import (
    MODEL,
    C,
    D,
    G,
    R,
    S,
    changes,
    connected,
    pass_time,
    registry,
)

# --- health ---


def test_changes_are_told_once_and_with_their_reason() -> None:
    table = registry()
    table.connected("a", MODEL, 1.0)
    table.lost("a", "it ended its stream", 2.0)
    first, second = table.take_transitions()
    assert (first.before, first.after) == (C, R)
    assert (second.before, second.after, second.why) == (R, D, "it ended its stream")
    assert table.take_transitions() == []


def test_the_first_connection_has_a_limit() -> None:
    table = registry("a", "b")
    table.connected("a", MODEL, 1.0)
    assert not table.is_settled()
    table.expire(3.0)
    assert table["b"].state is D
    assert table.is_settled()


def test_without_reports_a_replica_is_suspect_and_then_down() -> None:
    table = connected("a")
    table.report("a", ReplicaLoad(), 1.0)
    pass_time(table, 1.0, 2.9)
    assert table["a"].state is R
    pass_time(table, 3.0, 3.0)
    assert table["a"].state is S
    table.probed("a", 1.0, serving=True, now=3.5)
    assert table["a"].state is S, "its health check answers, its reports stay away"
    table.report("a", ReplicaLoad(), 4.0)
    assert table["a"].state is R
    pass_time(table, 4.0, 10.9)
    assert table["a"].state is S
    pass_time(table, 11.0, 11.0)
    assert not table.is_up("a")


def test_reports_alone_do_not_make_up_for_a_health_check_without_answer() -> None:
    table = connected("a")
    table.unanswered("a", 1.0)
    table.report("a", ReplicaLoad(), 1.1)
    assert table["a"].state is S
    table.probed("a", 1.0, serving=True, now=1.2)
    assert table["a"].state is R


def test_a_draining_report_keeps_a_healthy_replica_draining() -> None:
    table = connected("a")
    table.report("a", ReplicaLoad(draining=True), 1.0)
    table.probed("a", 1.0, serving=True, now=1.5)
    assert table["a"].state is G
    table.unanswered("a", 1.6)
    table.probed("a", 1.0, serving=True, now=1.7)
    assert changes(table) == [("a", R, G), ("a", G, S), ("a", S, G)]
    table.report("a", ReplicaLoad(draining=False), 1.8)
    table.probed("a", 1.0, serving=True, now=1.9)
    assert table["a"].state is R


def test_a_reconnected_replica_starts_without_its_old_load() -> None:
    table = connected("a")
    table.report("a", ReplicaLoad(draining=True), 1.0)
    table.lost("a", "", 2.0)
    table.connected("a", MODEL, 3.0)
    assert table["a"].load is None
    assert table["a"].state is R


# --- who there is ---


def test_a_discovered_replica_is_known_by_its_address_until_it_says_who_it_is() -> None:
    table = registry()
    replica = table.discover("10.0.0.1:7300", "dns:inference:7300", "r", 0.0)
    assert (replica.name, replica.region, replica.rtt.smoothed_ms) == ("10.0.0.1:7300", "r", 10.0)
    assert not replica.takes_sessions
    table.identify(replica.name, ReplicaIdentity("x", "r", MODEL))
    assert table["x"] is replica
    assert (replica.region, replica.rtt.smoothed_ms) == ("r", 10.0)
    table.connected("x", MODEL, 1.0)
    assert replica.takes_sessions


def test_the_way_to_a_new_replica_is_guessed_from_its_neighbours() -> None:
    table = connected("a")
    table.probed("a", 33.0, serving=True, now=0.1)
    replica = table.discover("10.0.0.1:7300", "dns", "r", 0.0)
    table.identify(replica.name, ReplicaIdentity("x", "r", MODEL))
    assert replica.rtt.smoothed_ms == 33.0


def test_an_address_may_come_back_under_another_name() -> None:
    table = registry("s")
    replica = table.discover("h:2", "dns", "r", 0.0)
    table.identify("h:2", ReplicaIdentity("x", "r", MODEL))
    table.connected("x", MODEL, 1.0)
    for _ in range(2):
        table.failed("x", "", 1.0)
    table.lost("x", "", 2.0)
    table.identify("x", ReplicaIdentity("y", "r", MODEL))
    table.connected("y", MODEL, 3.0)
    assert sorted(r.name for r in table) == ["s", "y"]
    assert replica.state is R, "the failures were those of another one"


def test_a_name_may_come_back_at_another_address_once_the_old_one_is_lost() -> None:
    table = registry("s")
    table.discover("h:2", "dns", "r", 0.0)
    table.identify("h:2", ReplicaIdentity("x", "r", MODEL))
    table.connected("x", MODEL, 1.0)
    table.discover("h:3", "dns", "r", 2.0)
    with pytest.raises(UnavailableError, match="calls itself x, as the replica at h:2 does"):
        table.identify("h:3", ReplicaIdentity("x", "r", MODEL))
    table.lost("x", "", 3.0)
    table.identify("h:3", ReplicaIdentity("x", "r", MODEL))
    assert {r.name: r.address for r in table} == {"s": "h:1", "h:2": "h:2", "x": "h:3"}


def test_a_name_is_kept_until_the_stream_of_the_old_one_has_ended() -> None:
    table = registry("s")
    table.discover("h:2", "dns", "r", 0.0)
    table.identify("h:2", ReplicaIdentity("x", "r", MODEL))
    table.connected("x", MODEL, 1.0)
    table.unanswered("x", 2.0)
    table.expire(1000.0)
    assert not table.is_up("x"), "it is given up, and its link notices at its next turn"
    table.discover("h:3", "dns", "r", 1000.0)
    with pytest.raises(UnavailableError, match="calls itself x, as the replica at h:2 does"):
        table.identify("h:3", ReplicaIdentity("x", "r", MODEL))
    table.lost("x", "", 1001.0)
    table.identify("h:3", ReplicaIdentity("x", "r", MODEL))
    assert table["x"].address == "h:3"


def test_the_region_is_the_configured_one() -> None:
    table = registry("a")
    table.discover("h:2", "dns", "r", 0.0)
    for name in ("a", "h:2"):
        with pytest.raises(UnavailableError, match="elsewhere and is configured in r"):
            table.identify(name, ReplicaIdentity(name, "elsewhere", MODEL))
        assert table[name].region == "r"
    table.identify("a", ReplicaIdentity("another", "r", MODEL))
    assert table.find("a"), "its name is the configured one"


def test_a_configured_replica_keeps_its_name() -> None:
    table = registry("a")
    table.discover("h:2", "dns", "r", 0.0)
    with pytest.raises(UnavailableError, match="a name of its own"):
        table.identify("h:2", ReplicaIdentity("a", "r", MODEL))


def test_who_is_not_found_any_more_keeps_its_sessions_and_gets_no_others() -> None:
    table = connected("a")
    table.place("a", 1, 0.5)
    table.leave("a", 1.0, "gone")
    table.probed("a", 1.0, serving=True, now=1.5)
    assert (table["a"].state, table["a"].sessions) == (G, {1})
    table.lost("a", "", 1.6)
    table.connected("a", MODEL, 1.7)
    assert table["a"].state is G
    table.stay("a", 1.8)
    assert table["a"].takes_sessions


def test_the_rows_that_changed_are_named() -> None:
    table = registry()

    def changed() -> set[str]:
        names = set(table.changed)
        table.changed.clear()
        return names

    assert changed() == {"a"}
    table.connected("a", MODEL, 1.0)
    assert changed() == {"a"}
    table.discover("h:2", "dns", "r", 1.2)
    assert changed() == {"h:2"}
    table.identify("h:2", ReplicaIdentity("x", "r", MODEL))
    assert changed() == {"h:2", "x"}
    assert (table.find("h:2"), table.find("x")) == (None, table["x"])
    table.report("a", ReplicaLoad(running_sessions=3), 1.3)
    table.expire(1.4)
    assert changed() == {"a"}
    table.place("x", 1, 1.5)
    assert changed() == {"x"}
    table.opened("x", 1, 20.0, 1.6)
    table.probed("a", 1.0, serving=True, now=1.6)
    assert changed() == {"a", "x"}
    table.release("x", 1)
    table.remove("x")
    assert changed() == {"x"}


def test_codecs_are_those_that_every_replica_reads() -> None:
    table = registry("a", "b", "c")
    assert table.codecs_of("m") == ()
    table.connected("a", MODEL, 0.0)
    table.connected("b", ServedModel("m", b"d", 0, (3, 2)), 0.0)
    table.connected("c", ServedModel("other", b"d", 0, ()), 0.0)
    assert table.codecs_of("m") == (2, 3)
