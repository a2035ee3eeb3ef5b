"""How many sessions of an address outrank others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.session.types import Priority
from services.router.admission.address_limit import MAX_REMEMBERED, PRESENCE_S, AddressLimit

ADDRESSES = st.sampled_from([b"", b"a", b"b", b"c"])
HIGH, MEDIUM, LOW = Priority.HIGH, Priority.MEDIUM, Priority.LOW


@given(st.lists(st.tuples(ADDRESSES, st.sampled_from(Priority), st.booleans()), max_size=60))
def test_while_others_are_there_a_few_of_an_address_outrank_them(
    events: list[tuple[bytes, Priority, bool]],
) -> None:
    limit = AddressLimit(2)
    limit.open("other", b"", MEDIUM)
    live = list[tuple[str, bytes, Priority]]()
    for now, (address, asked, leaves) in enumerate(events):
        if leaves and live:
            limit.close(*live.pop(0), now)
        priority = min(asked, limit.highest(str(address), address, now))
        limit.open(str(address), address, priority)
        live.append((str(address), address, priority))
        outranking = [one for _, one, granted in live if one and granted > LOW]
        assert len(limit) == len(set(outranking))
        assert all(outranking.count(one) <= 2 for one in outranking)
        assert limit.highest("", b"", now) is HIGH
    for one in live:
        limit.close(*one, 0.0)
    assert not len(limit)


def test_who_is_alone_has_the_class_of_his_choice_until_others_come_and_for_a_while_after() -> None:
    limit = AddressLimit(2)
    for _ in range(5):
        assert limit.highest("a", b"a", 0.0) is HIGH
        limit.open("a", b"a", MEDIUM)
    limit.open("b", b"b", MEDIUM)
    assert limit.highest("a", b"a", 1.0) is LOW
    assert limit.highest("b", b"b", 1.0) is HIGH
    limit.close("b", b"b", MEDIUM, 10.0)
    assert limit.highest("a", b"a", 10.0 + PRESENCE_S) is LOW
    assert limit.highest("a", b"a", 10.1 + PRESENCE_S) is HIGH


def test_who_left_last_counts_though_it_had_left_before() -> None:
    limit = AddressLimit(1)
    for flow, now in (("a", 0.0), ("b", 5.0), ("a", 10.0)):
        limit.open(flow, b"", MEDIUM)
        limit.close(flow, b"", MEDIUM, now)
    limit.open("c", b"c", MEDIUM)
    assert limit.highest("c", b"c", 10.0 + PRESENCE_S) is LOW
    assert limit.highest("c", b"c", 10.1 + PRESENCE_S) is HIGH


def test_what_is_remembered_is_bounded() -> None:
    limit = AddressLimit(2)
    for number in range(MAX_REMEMBERED + 100):
        limit.open(str(number), b"", MEDIUM)
        limit.close(str(number), b"", MEDIUM, float(number))
    assert len(limit._left_at) == MAX_REMEMBERED
    assert not limit._num_open
