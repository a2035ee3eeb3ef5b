"""Who joins, leaves and returns, whatever DNS does. Virtual time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.peers.membership import MAX_MEMBERS, Membership, Moves


def test_new_addresses_join_once() -> None:
    known = Membership(10.0)
    assert known.answered("t", ["b", "a", "b"], 0.0) == Moves(joined=("a", "b"))
    assert not known.answered("t", ["a", "b"], 5.0)


def test_who_is_missing_for_a_while_leaves_and_who_blinks_does_not() -> None:
    known = Membership(10.0)
    known.answered("t", ["a", "b"], 0.0)
    known.answered("t", ["a"], 5.0)
    assert not known.expire(14.9)
    known.answered("t", ["a", "b"], 14.9)
    assert not known.expire(30.0)
    known.answered("t", ["a"], 30.0)
    known.answered("t", ["a"], 35.0)
    assert known.expire(40.0) == Moves(left=("b",))
    assert not known.expire(41.0)


def test_who_is_found_again_before_it_is_gone_returns() -> None:
    known = Membership(0.0)
    known.answered("t", ["a", "b"], 0.0)
    known.answered("t", ["a"], 1.0)
    assert known.expire(1.0) == Moves(left=("b",))
    assert known.answered("t", ["a", "b"], 2.0) == Moves(returned=("b",))
    known.answered("t", ["a"], 3.0)
    known.expire(3.0)
    known.forget("b")
    assert "b" not in known
    assert known.answered("t", ["a", "b"], 4.0) == Moves(joined=("b",))


def test_an_answer_without_addresses_changes_nothing() -> None:
    known = Membership(0.0)
    known.answered("t", ["a"], 0.0)
    assert not known.answered("t", [], 1.0)
    assert not known.expire(100.0)


def test_an_address_stays_while_one_target_has_it() -> None:
    known = Membership(0.0)
    known.answered("t", ["a"], 0.0)
    assert not known.answered("u", ["a"], 0.0)
    known.answered("t", ["b"], 1.0)
    assert not known.expire(1.0)
    known.answered("u", ["b"], 2.0)
    assert known.expire(2.0) == Moves(left=("a",))


def test_an_answer_is_bounded() -> None:
    known = Membership(0.0)
    moves = known.answered("t", (str(n) for n in range(MAX_MEMBERS + 10)), 0.0)
    assert len(moves.joined) == MAX_MEMBERS


ANSWERS = st.tuples(
    st.sampled_from("tu"), st.frozensets(st.sampled_from("abcd")), st.floats(0.0, 4.0)
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
        last[target] = found or last.get(target, frozenset())
        in_use |= {*moves.joined, *moves.returned}
        in_use -= set(known.expire(now).left)
        listed = frozenset().union(*last.values())
        assert listed <= in_use
        assert all(now - seen_at[address] < 10.0 for address in in_use - listed)
