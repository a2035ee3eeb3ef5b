"""How many sessions of an address outrank others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.session_types import Priority
from services.router.admission.crowds import MAX_REMEMBERED, MEMORY_S, Crowds

ADDRESSES = st.sampled_from([b"", b"a", b"b", b"c"])
HIGH, MEDIUM, LOW = Priority.HIGH, Priority.MEDIUM, Priority.LOW


@given(st.lists(st.tuples(ADDRESSES, st.sampled_from(Priority), st.booleans()), max_size=60))
def test_while_others_are_there_a_few_of_an_address_outrank_them(
    events: list[tuple[bytes, Priority, bool]],
) -> None:
    crowds = Crowds(2)
    crowds.enter("other", b"", MEDIUM)
    live = list[tuple[str, bytes, Priority]]()
    for now, (address, asked, leaves) in enumerate(events):
        if leaves and live:
            crowds.leave(*live.pop(0), now)
        priority = min(asked, crowds.highest(str(address), address, now))
        crowds.enter(str(address), address, priority)
        live.append((str(address), address, priority))
        outranking = [one for _, one, granted in live if one and granted > LOW]
        assert len(crowds) == len(set(outranking))
        assert all(outranking.count(one) <= 2 for one in outranking)
        assert crowds.highest("", b"", now) is HIGH
    for one in live:
        crowds.leave(*one, 0.0)
    assert not len(crowds)


def test_who_is_alone_has_the_class_of_his_choice_until_others_come_and_for_a_while_after() -> None:
    crowds = Crowds(2)
    for _ in range(5):
        assert crowds.highest("a", b"a", 0.0) is HIGH
        crowds.enter("a", b"a", MEDIUM)
    crowds.enter("b", b"b", MEDIUM)
    assert crowds.highest("a", b"a", 1.0) is LOW
    assert crowds.highest("b", b"b", 1.0) is HIGH
    crowds.leave("b", b"b", MEDIUM, 10.0)
    assert crowds.highest("a", b"a", 10.0 + MEMORY_S) is LOW
    assert crowds.highest("a", b"a", 10.1 + MEMORY_S) is HIGH


def test_what_is_remembered_is_bounded() -> None:
    crowds = Crowds(2)
    for number in range(MAX_REMEMBERED + 100):
        crowds.enter(str(number), b"", MEDIUM)
        crowds.leave(str(number), b"", MEDIUM, float(number))
    assert len(crowds._left_at) == MAX_REMEMBERED
    assert not crowds._num_open
