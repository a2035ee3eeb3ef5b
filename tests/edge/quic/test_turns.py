"""Datagrams in turns: each sender's in order, no one's before all others', within bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.edge.quic.turns import Turns

PUTS = st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=30)), max_size=60)


def all_of(turns: Turns[int]) -> list[tuple[int, bytes]]:
    return list(iter(turns.take, None))


def test_one_who_sends_little_does_not_wait_for_one_who_sends_much() -> None:
    turns = Turns[str](1 << 20, 1 << 20)
    for n in range(100):
        assert turns.put("bulk", bytes([n]))
    assert turns.take() == ("bulk", b"\x00")
    assert turns.put("chat", b"hello")
    assert turns.take() == ("bulk", b"\x01")
    assert turns.take() == ("chat", b"hello")
    assert turns.take() == ("bulk", b"\x02")


@given(PUTS)
def test_each_senders_datagrams_come_in_order_and_all_of_them_do(
    puts: list[tuple[int, bytes]],
) -> None:
    turns = Turns[int](1 << 20, 1 << 20)
    for source, data in puts:
        assert turns.put(source, data)
    taken = all_of(turns)
    for source in range(4):
        sent = [data for who, data in puts if who == source]
        assert [data for who, data in taken if who == source] == sent
    assert turns.num_bytes == 0 and turns.take() is None


@given(PUTS)
def test_what_waits_stays_within_the_bounds(puts: list[tuple[int, bytes]]) -> None:
    turns = Turns[int](400, 900)
    kept = []
    for source, data in puts:
        if turns.put(source, data):
            kept.append((source, data))
        assert turns.num_bytes <= 900
    assert sorted(all_of(turns)) == sorted(kept)
    assert turns.put(0, b"x"), "there is room again"
