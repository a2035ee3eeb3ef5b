"""Datagrams in turns: each sender's in order, no one's before all others', within bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.edge.quic.turns import MAX_ADDRESSES, MEMORY_S, Share, Turns

PUTS = st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=30)), max_size=60)


SHARE = Share(0.5, 1.0)


def all_of(turns: Turns[int], now: float = 0.0) -> list[tuple[int, bytes]]:
    return [(source, data) for _, source, data in iter(lambda: turns.take(now), None)]


def test_one_who_sends_little_does_not_wait_for_one_who_sends_much() -> None:
    turns = Turns[str](1 << 20, 1 << 20, SHARE)
    for n in range(100):
        assert turns.put("there", "bulk", bytes([n]))
    assert turns.take(0.0) == ("there", "bulk", b"\x00")
    assert turns.put("there", "chat", b"hello")
    assert turns.take(0.0) == ("there", "bulk", b"\x01")
    assert turns.take(0.0) == ("there", "chat", b"hello")
    assert turns.take(0.0) == ("there", "bulk", b"\x02")


@given(PUTS)
def test_each_senders_datagrams_come_in_order_and_all_of_them_do(
    puts: list[tuple[int, bytes]],
) -> None:
    turns = Turns[int](1 << 20, 1 << 20, SHARE)
    for source, data in puts:
        assert turns.put(str(source % 2), source, data)
    taken = all_of(turns)
    for source in range(4):
        sent = [data for who, data in puts if who == source]
        assert [data for who, data in taken if who == source] == sent
    assert turns.num_bytes == 0 and turns.take(0.0) is None


@given(PUTS)
def test_what_waits_stays_within_the_bounds(puts: list[tuple[int, bytes]]) -> None:
    turns = Turns[int](400, 900, SHARE)
    kept = []
    for source, data in puts:
        if turns.put(str(source % 2), source, data):
            kept.append((source, data))
        assert turns.num_bytes <= 900
    assert sorted(all_of(turns)) == sorted(kept)
    assert turns.put("0", 0, b"x"), "there is room again"


def test_one_address_with_many_senders_is_one_among_two() -> None:
    turns = Turns[int](1 << 20, 1 << 20, SHARE)
    for source in range(100):
        assert turns.put("many", source, b"x")
    assert turns.put("one", 100, b"hello")
    assert [turns.take(0.0), turns.take(0.0)] == [("many", 0, b"x"), ("one", 100, b"hello")]


def test_who_has_used_its_share_up_rests_until_it_has_time_again() -> None:
    turns = Turns[int](1 << 20, 1 << 20, SHARE)
    turns.spend("b", 0.0, 10.0)
    assert turns.may_pass("a", 10.0)
    turns.spend("a", 1.0, 10.0)
    assert turns.may_pass("a", 10.0), "a burst"
    turns.spend("a", 0.5, 10.0)
    assert not turns.may_pass("a", 10.0) and turns.may_pass("b", 10.0)
    assert turns.put("a", 1, b"first") and turns.put("b", 2, b"other")
    assert turns.take(10.0) == ("b", 2, b"other")
    assert turns.take(10.0) is None and turns.next_at() == 11.0
    assert turns.put("a", 1, b"second")
    assert turns.take(10.9) is None
    assert not turns.may_pass("a", 11.0), "nobody passes those before him"
    assert all_of(turns, 11.0) == [(1, b"first"), (1, b"second")]
    assert turns.next_at() is None and turns.may_pass("a", 11.0)


@given(st.lists(st.tuples(st.floats(0.0, 0.3), st.floats(0.0, 1.0)), max_size=80))
def test_over_any_time_nobody_takes_more_than_its_share_and_a_burst(
    steps: list[tuple[float, float]],
) -> None:
    turns = Turns[int](1 << 20, 1 << 20, SHARE)
    now, used = 0.0, list[tuple[float, float]]()
    turns.spend("b", 0.0, now)
    for cost_s, pause_s in steps:
        now += pause_s
        turns.spend("b", 0.0, now)
        turns.put("a", 1, b"x")
        while turns.take(now) is not None:
            turns.spend("a", cost_s, now)
            used.append((now, cost_s))
        for index, (began, _) in enumerate(used):
            total_s = sum(cost for _, cost in used[index:])
            assert total_s <= SHARE.burst_s + SHARE.of_second * (now - began) + 0.3 + 1e-6


def test_one_address_that_rests_leaves_others_room_however_many_senders_it_has() -> None:
    turns = Turns[int](1000, 32_000, SHARE)
    turns.spend("b", 0.0, 0.0)
    turns.spend("a", 9.0, 0.0)
    kept = sum(turns.put("a", source, bytes(372)) for source in range(1000))
    assert turns.take(0.0) is None, "it rests"
    assert kept == 16 and turns.num_bytes == 8000
    assert turns.put("b", 1000, b"x") and turns.take(0.0) == ("b", 1000, b"x")
    assert len(all_of(turns, 100.0)) == kept
    assert not turns._bytes_of and not turns._bytes_each


def test_who_is_alone_takes_what_he_likes_and_owes_no_more_than_anybody_may() -> None:
    turns = Turns[int](1 << 20, 1 << 20, SHARE)
    for now in range(100):
        assert turns.may_pass("a", float(now))
        turns.spend("a", 1.0, float(now))
    turns.spend("b", 0.0, 99.0)
    assert not turns.may_pass("a", 99.0)
    assert turns.put("a", 1, b"x")
    assert turns.take(99.0) is None and turns.next_at() == 101.0
    assert turns.take(101.0) == ("a", 1, b"x")
    turns.spend("a", 5.0, 101.0)
    assert not turns.may_pass("a", 99.0 + MEMORY_S), "b may be back"
    assert turns.may_pass("a", 99.1 + MEMORY_S)


def test_use_of_a_bounded_number_of_addresses_is_remembered() -> None:
    turns = Turns[int](1 << 20, 1 << 20, SHARE)
    for number in range(MAX_ADDRESSES + 50):
        turns.spend(str(number), 9.0, 0.0)
    assert turns.may_pass("0", 0.0) and not turns.may_pass(str(MAX_ADDRESSES + 49), 0.0)
    assert len(turns._uses) == MAX_ADDRESSES
