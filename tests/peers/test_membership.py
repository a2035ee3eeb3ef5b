"""Targets as written in settings; who joins, leaves and returns, whatever DNS does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.peers.membership import (
    MAX_MEMBERS,
    Lookup,
    Membership,
    MembershipChange,
    Target,
    join_host_port,
    parse_target,
)


def reached(address: str) -> bool:
    """No address is lost."""
    return False


def lost(address: str) -> bool:
    """Every address is lost."""
    return True


def test_who_is_missing_for_a_while_leaves_and_who_blinks_does_not() -> None:
    known = Membership(10.0)
    known.answered("t", ["a", "b"], 0.0)
    known.answered("t", ["a"], 5.0)
    assert not known.expire(14.9, reached)
    known.answered("t", ["a", "b"], 14.9)
    assert not known.expire(30.0, reached)
    known.answered("t", ["a"], 30.0)
    known.answered("t", ["a"], 35.0)
    assert known.expire(40.0, reached) == MembershipChange(left=("b",))
    assert not known.expire(41.0, reached)


def test_who_is_found_again_before_it_is_gone_returns() -> None:
    known = Membership(0.0)
    known.answered("t", ["a", "b"], 0.0)
    known.answered("t", ["a"], 1.0)
    assert known.expire(1.0, reached) == MembershipChange(left=("b",))
    assert known.answered("t", ["a", "b"], 2.0) == MembershipChange(returned=("b",))
    known.answered("t", ["a"], 3.0)
    known.expire(3.0, reached)
    known.forget("b")
    assert "b" not in known
    assert known.answered("t", ["a", "b"], 4.0) == MembershipChange(joined=("b",))


def test_an_answer_without_addresses_takes_only_what_is_lost_and_only_after_a_while() -> None:
    known = Membership(10.0)
    known.answered("t", ["a"], 0.0)
    assert not known.answered("t", [], 1.0)
    assert not known.expire(100.0, reached)
    known.answered("t", ["a"], 101.0)
    assert not known.expire(200.0, lost)
    known.answered("t", [], 200.0)
    known.answered("t", [], 205.0)
    assert not known.expire(209.9, lost)
    assert known.expire(210.0, lost) == MembershipChange(left=("a",))


def test_an_answer_with_other_addresses_settles_what_an_empty_one_left_in_doubt() -> None:
    known = Membership(10.0)
    known.answered("t", ["a"], 0.0)
    known.answered("u", ["a"], 0.0)
    known.answered("t", [], 1.0)
    assert not known.expire(50.0, lost), "one target still has it"
    known.answered("u", [], 50.0)
    assert not known.expire(60.0, reached)
    known.answered("t", ["b"], 61.0)
    assert not known.expire(62.0, reached), "in doubt by u"
    known.answered("u", ["b"], 63.0)
    assert known.expire(63.0, reached) == MembershipChange(left=("a",))


def test_addresses_that_were_swapped_join_anew_by_the_targets_that_have_them_once_lost() -> None:
    known = Membership(10.0)
    known.answered("t", ["a"], 0.0)
    known.answered("u", ["b"], 0.0)
    known.answered("t", ["b"], 1.0)
    known.answered("u", ["a"], 1.0)
    assert not known.expire(50.0, reached), "a connection counts for more"
    assert known.expire(51.0, lost) == MembershipChange(left=("a", "b"))
    assert not known.answered("t", ["b"], 52.0), "it is not kept as one of u"
    for address in ("a", "b"):
        known.forget(address)
    assert known.answered("t", ["b"], 53.0) == MembershipChange(joined=("b",))
    assert known.answered("u", ["a"], 53.0) == MembershipChange(joined=("a",))
    assert not known.expire(100.0, lost)


def test_an_address_stays_while_one_target_has_it() -> None:
    known = Membership(0.0)
    known.answered("t", ["a"], 0.0)
    assert not known.answered("u", ["a"], 0.0)
    known.answered("t", ["b"], 1.0)
    assert not known.expire(1.0, reached)
    known.answered("u", ["b"], 2.0)
    assert known.expire(2.0, reached) == MembershipChange(left=("a",))


def test_an_answer_is_bounded() -> None:
    known = Membership(0.0)
    moves = known.answered("t", (str(n) for n in range(MAX_MEMBERS + 10)), 0.0)
    assert len(moves.joined) == MAX_MEMBERS


ANSWERS = st.tuples(
    st.sampled_from("tu"),
    st.frozensets(st.sampled_from("abcd"), min_size=1),
    st.floats(0.0, 4.0),
)


@given(st.lists(ANSWERS, max_size=40))
def test_those_in_use_are_always_those_of_the_last_answers_and_those_missed_only_just(
    answers: list[tuple[str, frozenset[str], float]],
) -> None:
    known, now = Membership(10.0), 0.0
    last: dict[str, frozenset[str]] = {}
    seen_at: dict[str, float] = {}
    in_use: set[str] = set()
    for target, found, passed in answers:
        for address in frozenset().union(*last.values()):
            seen_at[address] = now + passed
        now += passed
        moves = known.answered(target, found, now)
        last[target] = found
        in_use |= {*moves.joined, *moves.returned}
        in_use -= set(known.expire(now, reached).left)
        listed = frozenset().union(*last.values())
        assert listed <= in_use
        assert all(now - seen_at[address] < 10.0 for address in in_use - listed)


@pytest.mark.parametrize(
    ("text", "lookup", "host", "port"),
    [
        ("router:7100", Lookup.NONE, "router", 7100),
        ("[::1]:7100", Lookup.NONE, "[::1]", 7100),
        ("dns:7100", Lookup.NONE, "dns", 7100),
        ("dns:inference:7300", Lookup.ADDRESSES, "inference", 7300),
        ("srv:_grpc._tcp.inference.svc", Lookup.SERVICES, "_grpc._tcp.inference.svc", 0),
    ],
)
def test_a_target_says_how_it_is_looked_up(text: str, lookup: Lookup, host: str, port: int) -> None:
    assert parse_target(text, "each of routers") == Target(text, lookup, host, port)


@pytest.mark.parametrize(
    ("text", "lookup", "host"),
    [
        ("router-1:7100-7103", Lookup.NONE, "router-1"),
        ("dns:router:7100-7103", Lookup.ADDRESSES, "router"),
    ],
)
def test_a_target_may_have_several_ports(text: str, lookup: Lookup, host: str) -> None:
    assert parse_target(text, "each of routers") == Target(text, lookup, host, 7100, 4)


@pytest.mark.parametrize(
    "text",
    ["router:7103-7100", "router:7100-7200", "router:-7100", "router:7100-", "x:65535-65536"],
)
def test_ports_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="each of routers"):
        parse_target(text, "each of routers")


@pytest.mark.parametrize("text", ["", "router", "dns:", "dns:x", "srv:", "router:0", "dns:x:99999"])
def test_what_is_no_target_is_refused_by_the_name_of_its_key(text: str) -> None:
    with pytest.raises(ConfigError, match="each of routers"):
        parse_target(text, "each of routers")


def test_ipv6_addresses_get_brackets() -> None:
    assert (join_host_port("10.0.0.1", 7), join_host_port("fd00::1", 7)) == (
        "10.0.0.1:7",
        "[fd00::1]:7",
    )
