"""The router's queue."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.admission.policy import AGED_TURN, Lane
from services.router.admission.queue.waiting import WaitingRoom
from services.router.admission.ticket import Ticket
from tests.router.admission.people import REQUEST, ticket

AGEING_S = 10.0


def room_of(*tickets: Ticket, size: int = 100) -> WaitingRoom:
    room = WaitingRoom(size, AGEING_S)
    for entry in tickets:
        room.add(entry)
    return room


def next_of(room: WaitingRoom, now: float = 0.0) -> tuple[Ticket, Lane]:
    """Serve the first head of the first pool."""
    ticket, line = next(room.pools()[0].heads(now))
    room.serve(ticket, line)
    return ticket, line


def test_higher_classes_go_first_and_who_had_started_before_all() -> None:
    lanes = [Lane.LOW, Lane.HIGH, Lane.STARTED, Lane.MEDIUM, Lane.HIGH]
    room = room_of(*(ticket(session, lane=lane) for session, lane in enumerate(lanes)))
    assert [next_of(room)[0].session for _ in lanes] == [2, 1, 4, 3, 0]
    assert len(room) == 0
    assert room.pools() == []


def test_a_class_that_waited_too_long_gets_one_turn_in_eight() -> None:
    room = room_of(*(ticket(session, lane=Lane.LOW) for session in range(10)))
    for session in range(100, 200):
        room.add(ticket(session, lane=Lane.HIGH, at=AGEING_S))
    turns = [next_of(room, AGEING_S) for _ in range(4 * AGED_TURN)]
    low = [count for count, (head, _) in enumerate(turns) if head.lane is Lane.LOW]
    assert low == [AGED_TURN - 1 + AGED_TURN * count for count in range(4)]
    assert {line for head, line in turns if head.lane is Lane.LOW} == {Lane.STARTED}
    assert {line for head, line in turns if head.lane is Lane.HIGH} == {Lane.HIGH}


def test_a_class_that_did_not_wait_long_gets_none() -> None:
    room = room_of(ticket(1, lane=Lane.LOW))
    for session in range(100, 130):
        room.add(ticket(session, lane=Lane.HIGH))
    assert all(next_of(room, AGEING_S - 0.1)[0].lane is Lane.HIGH for _ in range(30))


def test_sessions_that_go_past_the_queue_count_as_turns() -> None:
    """MEDIUM ones that never wait cannot starve a LOW one that does."""
    room = room_of(ticket(1, lane=Lane.LOW))
    (pool,) = room.pools()
    for _ in range(AGED_TURN - 1):
        assert [line for _, line in pool.heads(AGEING_S)] == [Lane.LOW]
        pool.passed()
    assert [line for _, line in pool.heads(AGEING_S)] == [Lane.STARTED]


def test_pools_do_not_hold_up_each_other() -> None:
    elsewhere = replace(REQUEST, residency=("eu",))
    room = room_of(ticket(1, lane=Lane.HIGH), ticket(2, lane=Lane.LOW, request=elsewhere))
    heads = [[entry.session for entry, _ in pool.heads(0.0)] for pool in room.pools()]
    assert heads == [[1], [2]]
    assert [[e.session for e, _ in pool.heads(0.0)] for pool in room.pools()] == [[2], [1]]


def test_who_is_ahead_of_a_newcomer() -> None:
    room = room_of(*(ticket(session, "many") for session in range(50)))
    room.add(ticket(100, "few", lane=Lane.HIGH))
    (pool,) = room.pools()
    assert pool.num_ahead(Lane.MEDIUM, "many") == 51
    assert pool.num_ahead(Lane.MEDIUM, "new") == 2, "one of each tenant in its class, and HIGH"
    assert pool.num_ahead(Lane.HIGH, "many") == 1
    assert pool.num_ahead(Lane.STARTED, "many") == 0


def shed(room: WaitingRoom, lane: Lane, tenant: str = "x") -> int | None:
    """Who has to leave for a newcomer; None: the newcomer itself."""
    bar = room.bar(lane)
    assert bar is not None, "there is room"
    found = room.victim(bar, lane, tenant)
    return found.session if found else None


@pytest.mark.parametrize(
    ("lane", "tenant", "victim"),
    [
        (Lane.HIGH, "x", 3),
        (Lane.MEDIUM, "many", 3),
        (Lane.LOW, "x", 3),
        (Lane.LOW, "many", None),
        (Lane.LOW, "few", 3),
    ],
)
def test_who_makes_room_in_a_full_one(lane: Lane, tenant: str, victim: int | None) -> None:
    low = [ticket(session, "many", lane=Lane.LOW, until=100.0 + session) for session in range(4)]
    room = room_of(*low, ticket(10, "few", lane=Lane.LOW), ticket(11, "x"), size=6)
    assert shed(room, lane, tenant) == victim


def test_none_makes_room_for_a_lower_class() -> None:
    assert shed(room_of(ticket(1, "a"), ticket(2, "a"), size=2), Lane.LOW, "b") is None


def test_an_eighth_is_kept_for_each_lower_class() -> None:
    room = room_of(*(ticket(n, "m", until=float(n)) for n in range(70)), size=80)
    assert shed(room, Lane.MEDIUM, "m") is None
    assert shed(room, Lane.MEDIUM, "x") == 69
    assert shed(room, Lane.HIGH) == 69
    for session in range(100, 110):
        assert room.bar(Lane.LOW) is None
        room.add(ticket(session, "l", lane=Lane.LOW))
    assert shed(room, Lane.LOW, "l") is None
    assert shed(room, Lane.HIGH) == 69, "LOW has no more than its share"


def test_what_is_kept_for_a_class_is_kept_from_high_too() -> None:
    room = room_of(*(ticket(n, "h", lane=Lane.HIGH) for n in range(60)), size=80)
    assert shed(room, Lane.HIGH, "h") is None
    assert room.bar(Lane.MEDIUM) is None
    assert room.bar(Lane.LOW) is None


def test_who_waited_too_long_is_found_once_and_only_if_it_still_waits() -> None:
    tickets = [ticket(session, until=float(session)) for session in range(5)]
    room = room_of(*tickets)
    room.remove(tickets[1])
    late = room.expire(3.0)
    assert [entry.session for entry in late] == [0, 2, 3]
    for entry in late:
        room.remove(entry)
    assert room.expire(3.0) == []
    assert [entry.session for entry in room.expire(100.0)] == [4]


@given(st.lists(st.tuples(st.sampled_from(list(Lane)), st.booleans()), max_size=400))
def test_the_books_agree_and_ends_are_bounded(steps: list[tuple[Lane, bool]]) -> None:
    room = WaitingRoom(1000, AGEING_S)
    there: list[Ticket] = []
    for number, (lane, leaves) in enumerate(steps):
        if leaves and there:
            room.remove(there.pop())
        else:
            there.append(ticket(number, f"t{number % 3}", lane=lane, until=float(number % 7)))
            room.add(there[-1])
        assert len(room) == len(there) == sum(len(pool) for pool in room.pools())
        assert room.num_waiting[lane] == sum(entry.lane is lane for entry in there)
        assert len(room._ends) <= 2 * len(room) + 65
    assert {t.session for t in room.expire(10.0)} == {t.session for t in there}
