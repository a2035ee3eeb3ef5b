"""Datagrams in queue: each sender's in order, no one's before all others', within bounds."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from services.edge.limits.fair_queue import ACTIVE_S, MAX_ADDRESSES, FairQueue, LoopShare, LoopUses

PUTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.binary(max_size=30)), max_size=60
)
"""Prefix, sender, data: what a sender sends may count for any prefix."""


SHARE = LoopShare(0.5, 1.0)


def all_of(queue: FairQueue[int], now: float = 0.0) -> list[tuple[int, bytes]]:
    return [(source, data) for _, source, data in iter(lambda: queue.take(now), None)]


def test_one_who_sends_little_does_not_wait_for_one_who_sends_much() -> None:
    queue = FairQueue[str](1 << 20, 1 << 20, LoopUses(SHARE))
    for n in range(100):
        assert queue.put("there", "bulk", bytes([n]))
    assert queue.take(0.0) == ("there", "bulk", b"\x00")
    assert queue.put("there", "chat", b"hello")
    assert queue.take(0.0) == ("there", "bulk", b"\x01")
    assert queue.take(0.0) == ("there", "chat", b"hello")
    assert queue.take(0.0) == ("there", "bulk", b"\x02")


@given(PUTS)
def test_each_senders_datagrams_come_in_order_and_all_of_them_do(
    puts: list[tuple[str, int, bytes]],
) -> None:
    queue = FairQueue[int](1 << 20, 1 << 20, LoopUses(SHARE))
    for put in puts:
        assert queue.put(*put)
    taken = list(iter(lambda: queue.take(0.0), None))
    for who in itertools.product("ab", range(4)):
        sent = [data for *its, data in puts if tuple(its) == who]
        assert [data for *its, data in taken if tuple(its) == who] == sent
    assert queue.num_bytes == 0 and queue.take(0.0) is None


@given(PUTS)
def test_what_waits_stays_within_the_bounds(puts: list[tuple[str, int, bytes]]) -> None:
    queue = FairQueue[int](400, 900, LoopUses(SHARE))
    kept = []
    for put in puts:
        if queue.put(*put):
            kept.append(put)
        assert queue.num_bytes <= 900
    assert sorted(iter(lambda: queue.take(0.0), None)) == sorted(kept)
    assert queue.put("a", 0, b"x"), "there is room again"


def test_one_address_with_many_senders_is_one_among_two() -> None:
    queue = FairQueue[int](1 << 20, 1 << 20, LoopUses(SHARE))
    for source in range(100):
        assert queue.put("many", source, b"x")
    assert queue.put("one", 100, b"hello")
    assert [queue.take(0.0), queue.take(0.0)] == [("many", 0, b"x"), ("one", 100, b"hello")]


def test_who_has_used_its_share_up_rests_until_it_has_time_again() -> None:
    queue = FairQueue[int](1 << 20, 1 << 20, LoopUses(SHARE))
    queue.uses.spend("b", 0.0, 10.0)
    assert queue.may_pass("a", 10.0)
    queue.uses.spend("a", 1.0, 10.0)
    assert queue.may_pass("a", 10.0), "a burst"
    queue.uses.spend("a", 0.5, 10.0)
    assert not queue.may_pass("a", 10.0) and queue.may_pass("b", 10.0)
    assert queue.put("a", 1, b"first") and queue.put("b", 2, b"other")
    assert queue.take(10.0) == ("b", 2, b"other")
    assert queue.take(10.0) is None and queue.next_release() == 11.0
    assert queue.put("a", 1, b"second")
    assert queue.take(10.9) is None
    assert not queue.may_pass("a", 11.0), "nobody passes those before him"
    assert all_of(queue, 11.0) == [(1, b"first"), (1, b"second")]
    assert queue.next_release() is None and queue.may_pass("a", 11.0)


@given(st.lists(st.tuples(st.floats(0.0, 0.3), st.floats(0.0, 1.0)), max_size=80))
def test_over_any_time_nobody_takes_more_than_its_share_and_a_burst(
    steps: list[tuple[float, float]],
) -> None:
    queue = FairQueue[int](1 << 20, 1 << 20, LoopUses(SHARE))
    now, used = 0.0, list[tuple[float, float]]()
    queue.uses.spend("b", 0.0, now)
    for cost_s, pause_s in steps:
        now += pause_s
        queue.uses.spend("b", 0.0, now)
        queue.put("a", 1, b"x")
        while queue.take(now) is not None:
            queue.uses.spend("a", cost_s, now)
            used.append((now, cost_s))
        for index, (began, _) in enumerate(used):
            total_s = sum(cost for _, cost in used[index:])
            assert total_s <= SHARE.burst_s + SHARE.rate * (now - began) + 0.3 + 1e-6


def test_one_address_that_rests_leaves_others_room_however_many_senders_it_has() -> None:
    queue = FairQueue[int](1000, 32_000, LoopUses(SHARE))
    queue.uses.spend("b", 0.0, 0.0)
    queue.uses.spend("a", 9.0, 0.0)
    kept = sum(queue.put("a", source, bytes(372)) for source in range(1000))
    assert queue.take(0.0) is None, "it rests"
    assert kept == 16 and queue.num_bytes == 8000
    assert queue.put("b", 1000, b"x") and queue.take(0.0) == ("b", 1000, b"x")
    assert len(all_of(queue, 100.0)) == kept
    assert not queue._bytes_by_address and not queue._bytes_by_source


def test_who_is_alone_takes_what_he_likes_and_owes_no_more_than_anybody_may() -> None:
    queue = FairQueue[int](1 << 20, 1 << 20, LoopUses(SHARE))
    for now in range(100):
        assert queue.may_pass("a", float(now))
        queue.uses.spend("a", 1.0, float(now))
    queue.uses.spend("b", 0.0, 99.0)
    assert not queue.may_pass("a", 99.0)
    assert queue.put("a", 1, b"x")
    assert queue.take(99.0) is None and queue.next_release() == 101.0
    assert queue.take(101.0) == ("a", 1, b"x")
    queue.uses.spend("a", 5.0, 101.0)
    assert not queue.may_pass("a", 99.0 + ACTIVE_S), "b may be back"
    assert queue.may_pass("a", 99.1 + ACTIVE_S)


def test_use_of_a_bounded_number_of_addresses_is_remembered() -> None:
    queue = FairQueue[int](1 << 20, 1 << 20, LoopUses(SHARE))
    for number in range(MAX_ADDRESSES + 50):
        queue.uses.spend(str(number), 9.0, 0.0)
    assert queue.may_pass("0", 0.0) and not queue.may_pass(str(MAX_ADDRESSES + 49), 0.0)
    assert len(queue.uses) == MAX_ADDRESSES
