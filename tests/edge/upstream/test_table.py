"""Which router takes the next session: distance, health, load. Virtual time, seeded choices."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.peers.health import HealthPolicy, PeerState, QuarantinePolicy
from services.edge.upstream.table import RouterTable

C, R, S, D, G, Q, T = PeerState
POLICY = HealthPolicy(
    suspect_s=2.0, quarantine=QuarantinePolicy(max_failures=2, window_s=30.0, first_s=2.0)
)


def table(**routers: tuple[str, float]) -> RouterTable:
    """READY routers by address, in the order of the settings: region and round trip in ms."""
    it = RouterTable(POLICY, Random(1))
    for rank, (address, (region, rtt_ms)) in enumerate(routers.items()):
        it.add(address, f"target {rank}", rank, 0.0)
        it.connected(address, 0.0)
        it.answered(address, region, rtt_ms, True, 0.0)
    it.take_transitions()
    return it


def picked(it: RouterTable, *avoid: str) -> str:
    router = it.pick(avoid)
    return router.address if router else ""


def measure(it: RouterTable, address: str, rtt_ms: float) -> None:
    """Its way has become another one."""
    for _ in range(100):
        it.answered(address, it[address].region, rtt_ms, True, 1.0)


def test_the_nearest_region_takes_the_session_whatever_the_order() -> None:
    it = table(far=("eu", 90.0), near=("us", 20.0), farther=("ap", 200.0))
    assert picked(it) == "near"
    it.lost("near", "reset", 1.0)
    assert picked(it) == "far"
    assert picked(it, "far") == "farther"


def test_between_regions_equally_near_the_order_decides() -> None:
    assert picked(table(a=("x", 4.0), b=("y", 1.0))) == "a"
    assert picked(table(a=("x", 50.0), b=("y", 45.0))) == "a"
    assert picked(table(a=("x", 50.0), b=("y", 30.0))) == "b"


def test_the_region_in_use_stays_until_another_is_clearly_nearer() -> None:
    it = table(a=("x", 30.0), b=("y", 60.0))
    assert picked(it) == "a"
    measure(it, "a", 30.0)
    measure(it, "b", 27.0)
    assert picked(it) == "a"
    measure(it, "b", 10.0)
    assert picked(it) == "b"
    measure(it, "b", 30.0)
    assert picked(it) == "b"


def test_a_region_is_not_left_for_good_because_one_session_avoids_it() -> None:
    it = table(a=("x", 10.0), b=("y", 12.0))
    assert picked(it) == "a"
    assert picked(it, "a") == "b"
    assert picked(it) == "a"


def test_the_routers_of_a_region_share_its_sessions() -> None:
    it = table(a=("x", 1.0), b=("x", 1.2), c=("x", 0.9), far=("y", 80.0))
    counts: Counter[str] = Counter()
    for session in range(300):
        address = picked(it)
        it.opened(address, session)
        counts[address] += 1
    assert set(counts) == {"a", "b", "c"}
    assert max(counts.values()) - min(counts.values()) <= 5


def test_who_is_avoided_is_better_than_nobody() -> None:
    it = table(a=("x", 1.0), b=("x", 1.0))
    assert picked(it, "a") == "b"
    assert picked(it, "a", "b") in {"a", "b"}
    it.lost("a", "", 1.0)
    it.lost("b", "", 1.0)
    assert picked(it) == ""


def test_routers_that_say_no_region_stand_for_those_found_with_them() -> None:
    it = table(a=("", 50.0), b=("", 10.0))
    assert picked(it) == "b"


def test_silent_stopping_and_missing_routers_get_no_sessions() -> None:
    it = table(a=("x", 1.0), b=("x", 1.0), c=("x", 1.0), d=("x", 1.0))
    it.unanswered("a", 1.0)
    it.answered("b", "x", 1.0, False, 1.0)
    it.leave("c", 1.0)
    assert [router.state for router in it] == [S, G, G, R]
    assert {picked(it) for _ in range(20)} == {"d"}
    it.answered("a", "x", 1.0, True, 1.5)
    it.answered("b", "x", 1.0, True, 1.5)
    it.answered("c", "x", 1.0, True, 1.5)
    assert [router.state for router in it] == [R, R, G, R], "who is missing stays so"
    it.stay("c", 1.6)
    assert it["c"].state is R


def test_where_all_are_silent_one_whose_stream_is_up_is_better_than_none() -> None:
    it = table(a=("x", 1.0), b=("x", 1.0))
    it.lost("b", "reset", 1.0)
    it.unanswered("a", 1.0)
    assert picked(it) == "a"
    it.expire(3.0)
    assert picked(it) == ""


def test_a_router_that_stays_silent_is_down() -> None:
    it = table(a=("x", 1.0))
    it.unanswered("a", 1.0)
    it.expire(2.9)
    assert it["a"].health.is_up
    it.expire(3.0)
    (suspected, lost) = it.take_transitions()
    assert (suspected.after, lost.after) == (S, D)


def test_a_router_that_is_late_with_probes_and_says_other_things_is_not_silent() -> None:
    it = table(a=("x", 1.0), b=("x", 1.0), c=("x", 1.0), d=("x", 1.0))
    it.leave("b", 1.0)
    it.answered("c", "x", 1.0, False, 1.0)
    it.answered("d", "x", 1.0, False, 1.0)
    for name in "abc":
        it.unanswered(name, 1.5)
    assert [router.state for router in it] == [S, S, S, G]
    for name in "abcd":
        it.heard(name, 2.0)
    assert [router.state for router in it] == [R, G, G, G], "who stops, stops"
    it.expire(10.0)
    assert it["a"].state is R


def test_a_router_that_breaks_often_is_tried_with_one_session() -> None:
    it = table(a=("x", 1.0), b=("y", 50.0))
    for now in (1.0, 2.0):
        it.lost("a", "reset", now)
        it.connected("a", now + 0.1)
    assert it["a"].state is Q
    assert picked(it) == "b"
    it.expire(4.0)
    assert it["a"].state is T
    assert picked(it) == "a"
    it.opened("a", 7)
    assert picked(it) == "b"
    it.closed("a", 7)  # it ended before it got a token
    assert picked(it) == "a"
    it.opened("a", 8)
    it.served("a", 8, 5.0)
    assert it["a"].state is R


def test_the_only_router_is_never_left_alone() -> None:
    it = table(a=("x", 1.0))
    for now in range(10):
        it.lost("a", "reset", float(now))
        it.connected("a", float(now))
    assert picked(it) == "a"


def test_what_breaks_because_this_edge_was_late_is_no_failure_of_the_router() -> None:
    it = table(a=("x", 1.0), b=("y", 50.0))
    for now in range(10):
        it.lost("a", "reset", float(now), is_own=True)
        it.connected("a", float(now))
        assert picked(it) == "a"


def test_a_router_that_was_lost_a_moment_ago_may_be_back() -> None:
    it = table(a=("x", 1.0))
    assert not it.may_return(5.0, 0.0)
    it.lost("a", "reset", 1.0)
    it.lost("a", "refused", 4.0)  # an attempt in vain
    assert it.may_return(5.0, 5.9)
    assert not it.may_return(5.0, 6.0)
    it.leave("a", 6.0)
    assert not it.may_return(9.0, 6.0)


STEPS = st.tuples(
    st.sampled_from(["connected", "lost", "unanswered", "answered", "stops", "leave", "stay"]),
    st.sampled_from("abc"),
    st.floats(0.0, 3.0),
)


@given(st.lists(STEPS, max_size=40), st.sets(st.sampled_from("abc")))
def test_whoever_is_picked_takes_sessions_and_somebody_is_while_one_does(
    steps: list[tuple[str, str, float]], avoid: set[str]
) -> None:
    it, now = table(a=("x", 1.0), b=("x", 40.0), c=("y", 90.0)), 0.0
    for step, address, passed in steps:
        now += passed
        if step in ("answered", "stops"):
            it.answered(address, it[address].region, 5.0, step == "answered", now)
        elif step == "lost":
            it.lost(address, "reset", now)
        else:
            getattr(it, step)(address, now)
        it.expire(now)
        able = {router.address for router in it if router.health.takes_sessions}
        able = able or {router.address for router in it if router.state is S}
        choice = picked(it, *avoid)
        assert choice in (able - avoid or able or {""})
    assert sum(it.count().values()) == 3


@pytest.mark.parametrize("address", ["a", "b"])
def test_removed_routers_are_forgotten(address: str) -> None:
    it = table(a=("x", 1.0), b=("x", 1.0))
    it.remove(address)
    assert [router.address for router in it] == [{"a": "b", "b": "a"}[address]]
