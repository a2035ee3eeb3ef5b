"""The router's queue: its order, its bound, its rate."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.admission.policy import AGED_TURN_INTERVAL, QueuePriority
from services.router.admission.queue import (
    FIRST_INTERVAL_S,
    MIN_SAMPLES,
    AdmissionQueue,
    QueueRate,
)
from services.router.admission.session import AdmittedSession
from tests.router.admission.fakes import REQUEST, admitted
from tests.test_fair_queue import SERVED, WEIGHTS, Shares

# --- all waiting sessions ---

AGEING_S = 10.0


def queue_of(*sessions: AdmittedSession, size: int = 100) -> AdmissionQueue:
    queue = AdmissionQueue(size, AGEING_S)
    for entry in sessions:
        queue.push(entry)
    return queue


def next_of(queue: AdmissionQueue, now: float = 0.0) -> tuple[AdmittedSession, QueuePriority]:
    """Serve the first head."""
    session, backlog_priority, _ = queue.heads(now)[0]
    queue.pop(session, backlog_priority)
    return session, backlog_priority


def test_higher_classes_go_first_and_who_had_started_before_all() -> None:
    priorities = [
        QueuePriority.LOW,
        QueuePriority.HIGH,
        QueuePriority.RESUMED,
        QueuePriority.MEDIUM,
        QueuePriority.HIGH,
    ]
    queue = queue_of(
        *(admitted(session, priority=priority) for session, priority in enumerate(priorities))
    )
    assert [next_of(queue)[0].session_id for _ in priorities] == [2, 1, 4, 3, 0]
    assert len(queue) == 0
    assert queue.heads(0.0) == []


def test_who_says_that_it_had_started_gets_every_other_turn() -> None:
    queue = queue_of(*(admitted(n, "says so", QueuePriority.RESUMED) for n in range(6)))
    for session in range(10, 13):
        queue.push(admitted(session, priority=QueuePriority.HIGH))
    turns = [next_of(queue)[0].queue_priority for _ in range(9)]
    resumed, high = QueuePriority.RESUMED, QueuePriority.HIGH
    assert turns == [resumed, high] * 3 + [resumed] * 3


def test_a_class_that_waited_too_long_gets_one_turn_in_eight() -> None:
    queue = queue_of(*(admitted(session, priority=QueuePriority.LOW) for session in range(10)))
    for session in range(100, 200):
        queue.push(admitted(session, priority=QueuePriority.HIGH, at=AGEING_S))
    turns = [next_of(queue, AGEING_S) for _ in range(4 * AGED_TURN_INTERVAL)]
    low = [
        count for count, (head, _) in enumerate(turns) if head.queue_priority is QueuePriority.LOW
    ]
    assert low == [AGED_TURN_INTERVAL - 1 + AGED_TURN_INTERVAL * count for count in range(4)]
    assert {
        backlog_priority
        for head, backlog_priority in turns
        if head.queue_priority is QueuePriority.LOW
    } == {QueuePriority.RESUMED}
    assert {
        backlog_priority
        for head, backlog_priority in turns
        if head.queue_priority is QueuePriority.HIGH
    } == {QueuePriority.HIGH}


def test_a_class_that_did_not_wait_long_gets_none() -> None:
    queue = queue_of(admitted(1, priority=QueuePriority.LOW))
    for session in range(100, 130):
        queue.push(admitted(session, priority=QueuePriority.HIGH))
    assert all(
        next_of(queue, AGEING_S - 0.1)[0].queue_priority is QueuePriority.HIGH for _ in range(30)
    )


def test_sessions_that_go_past_the_queue_count_as_turns() -> None:
    """MEDIUM ones that never wait cannot starve a LOW one that does."""
    queue = queue_of(admitted(1, priority=QueuePriority.LOW))
    (sub_queue,) = queue._sub_queues.values()
    for _ in range(AGED_TURN_INTERVAL - 1):
        assert [head.backlog_priority for head in sub_queue.heads(AGEING_S)] == [QueuePriority.LOW]
        sub_queue.count_bypass()
    assert [head.backlog_priority for head in sub_queue.heads(AGEING_S)] == [QueuePriority.RESUMED]


def test_pools_do_not_hold_up_each_other() -> None:
    elsewhere = replace(REQUEST, residency=("eu",))
    queue = queue_of(
        admitted(1, priority=QueuePriority.HIGH),
        admitted(2, priority=QueuePriority.LOW, request=elsewhere),
    )
    assert [head.session.session_id for head in queue.heads(0.0)] == [1, 2]


def test_naming_other_regions_gets_nobody_another_turn() -> None:
    """Three sub-queues of one tenant, in one of which others wait too: they share as in one."""
    queue = AdmissionQueue(100, AGEING_S)
    regions = ("us",), ("us", "eu"), ()
    for session in range(30):
        queue.push(
            admitted(session, "many", request=replace(REQUEST, residency=regions[session % 3]))
        )
    for session in range(30, 50):
        queue.push(admitted(session, ("one", "other")[session % 2]))
    turns = [next_of(queue)[0].flow for _ in range(30)]
    for count in range(0, 30, 3):
        assert sorted(turns[count : count + 3]) == ["many", "one", "other"]


def test_classes_have_one_order_wherever_they_may_go() -> None:
    here = replace(REQUEST, residency=("us",))
    queue = queue_of(
        *(admitted(n, priority=QueuePriority.LOW, request=here) for n in range(3)),
        *(admitted(n, priority=QueuePriority.HIGH, at=AGEING_S) for n in range(10, 40)),
    )
    turns = [next_of(queue, AGEING_S)[0].queue_priority for _ in range(2 * AGED_TURN_INTERVAL)]
    low = [number for number, it in enumerate(turns) if it is QueuePriority.LOW]
    assert low == [AGED_TURN_INTERVAL - 1, 2 * AGED_TURN_INTERVAL - 1], "as in one sub-queue"


def test_where_there_was_no_room_a_newcomer_shares_with_those_who_wait() -> None:
    there = replace(REQUEST, residency=("eu",))
    queue = queue_of(*(admitted(n, "first", request=there) for n in range(10)))
    for session in range(20, 60):
        queue.push(admitted(session, "elsewhere"))
    for _ in range(30):
        head = next(it for it in queue.heads(0.0) if it.session.flow == "elsewhere")
        queue.pop(head.session, head.backlog_priority)
    for session in range(60, 70):
        queue.push(admitted(session, "newcomer", request=there))
    turns = [next_of(queue)[0].flow for _ in range(20)]
    assert turns.count("first") == turns.count("newcomer") == 10, "who got nothing goes first"
    assert sorted(turns[:10]).count("newcomer") == pytest.approx(5, abs=1)


def test_the_longest_share_gives_way_however_it_is_spread() -> None:
    queue = AdmissionQueue(10, AGEING_S)
    for session in range(6):
        residency = ("us",) if session % 2 else ("us", "eu")
        queue.push(admitted(session, "many", request=replace(REQUEST, residency=residency)))
    for session in range(6, 10):
        queue.push(admitted(session, "few"))
    assert victim_of(queue, QueuePriority.MEDIUM, "new") in range(6)
    assert victim_of(queue, QueuePriority.MEDIUM, "many") is None


def test_who_is_ahead_of_a_newcomer() -> None:
    queue = queue_of(*(admitted(session, "many") for session in range(50)))
    queue.push(admitted(100, "few", priority=QueuePriority.HIGH))
    (sub_queue,) = queue._sub_queues.values()
    assert sub_queue.num_ahead(QueuePriority.MEDIUM, "many") == 51
    assert sub_queue.num_ahead(QueuePriority.MEDIUM, "new") == 2, (
        "one of each tenant in its class, and HIGH"
    )
    assert sub_queue.num_ahead(QueuePriority.HIGH, "many") == 1
    assert sub_queue.num_ahead(QueuePriority.RESUMED, "many") == 0


def victim_of(queue: AdmissionQueue, priority: QueuePriority, tenant: str = "x") -> int | None:
    """Who has to leave for a newcomer; None: the newcomer itself."""
    shed = queue.shed_priority("m", priority)
    assert shed is not None, "there is room"
    found = queue.victim("m", shed, priority, tenant)
    return found.session_id if found else None


@pytest.mark.parametrize(
    ("priority", "tenant", "victim"),
    [
        (QueuePriority.HIGH, "x", 3),
        (QueuePriority.MEDIUM, "many", 3),
        (QueuePriority.LOW, "x", 3),
        (QueuePriority.LOW, "many", None),
        (QueuePriority.LOW, "few", 3),
    ],
)
def test_who_makes_room_in_a_full_one(
    priority: QueuePriority, tenant: str, victim: int | None
) -> None:
    low = [
        admitted(session, "many", priority=QueuePriority.LOW, until=100.0 + session)
        for session in range(4)
    ]
    queue = queue_of(
        *low, admitted(10, "few", priority=QueuePriority.LOW), admitted(11, "x"), size=6
    )
    assert victim_of(queue, priority, tenant) == victim


def test_none_makes_room_for_a_lower_class() -> None:
    assert (
        victim_of(queue_of(admitted(1, "a"), admitted(2, "a"), size=2), QueuePriority.LOW, "b")
        is None
    )


def test_an_eighth_is_kept_for_each_lower_class() -> None:
    queue = queue_of(*(admitted(n, "m", until=float(n)) for n in range(70)), size=80)
    assert victim_of(queue, QueuePriority.MEDIUM, "m") is None
    assert victim_of(queue, QueuePriority.MEDIUM, "x") == 69
    assert victim_of(queue, QueuePriority.HIGH) == 69
    for session in range(100, 110):
        assert queue.shed_priority("m", QueuePriority.LOW) is None
        queue.push(admitted(session, "l", priority=QueuePriority.LOW))
    assert victim_of(queue, QueuePriority.LOW, "l") is None
    assert victim_of(queue, QueuePriority.HIGH) == 69, "LOW has no more than its share"


def test_what_is_kept_for_a_class_is_kept_from_high_too() -> None:
    queue = queue_of(*(admitted(n, "h", priority=QueuePriority.HIGH) for n in range(60)), size=80)
    assert victim_of(queue, QueuePriority.HIGH, "h") is None
    assert queue.shed_priority("m", QueuePriority.MEDIUM) is None
    assert queue.shed_priority("m", QueuePriority.LOW) is None


def test_a_model_without_room_keeps_out_no_session_of_another() -> None:
    high = (admitted(n, "one", priority=QueuePriority.HIGH) for n in range(80))
    queue = queue_of(*high, size=80)
    assert victim_of(queue, QueuePriority.HIGH, "one") is None
    assert queue.shed_priority("other", QueuePriority.LOW) is None

    other = replace(REQUEST, model="other")
    for number in range(100, 180):
        queue.push(
            admitted(number, "two", priority=QueuePriority.LOW, until=float(number), request=other)
        )
    shed = queue.shed_priority("other", QueuePriority.HIGH)
    assert shed is QueuePriority.LOW
    found = queue.victim("other", shed, QueuePriority.HIGH, "one")
    assert found is not None and found.session_id == 179, "of its own model"
    assert queue.num_waiting()["m"][QueuePriority.HIGH] == 80
    assert queue.length("other") == 80


def test_who_waited_too_long_is_found_once_and_only_if_it_still_waits() -> None:
    sessions = [admitted(session, until=float(session)) for session in range(5)]
    queue = queue_of(*sessions)
    queue.remove(sessions[1])
    late = queue.expire(3.0)
    assert [entry.session_id for entry in late] == [0, 2, 3]
    for entry in late:
        queue.remove(entry)
    assert queue.expire(3.0) == []
    assert [entry.session_id for entry in queue.expire(100.0)] == [4]


@given(st.lists(st.tuples(st.sampled_from(list(QueuePriority)), st.booleans()), max_size=400))
def test_the_books_agree_and_expiries_are_bounded(steps: list[tuple[QueuePriority, bool]]) -> None:
    queue = AdmissionQueue(1000, AGEING_S)
    there: list[AdmittedSession] = []
    for number, (priority, leaves) in enumerate(steps):
        if leaves and there:
            queue.remove(there.pop())
        else:
            there.append(
                admitted(number, f"t{number % 3}", priority=priority, until=float(number % 7))
            )
            queue.push(there[-1])
        assert (
            len(queue)
            == len(there)
            == sum(len(sub_queue) for sub_queue in queue._sub_queues.values())
        )
        assert queue.num_waiting().get("m", {}).get(priority, 0) == sum(
            entry.queue_priority is priority for entry in there
        )
        assert len(queue._expiries) <= 2 * len(queue) + 65
    assert {t.session_id for t in queue.expire(10.0)} == {t.session_id for t in there}


@given(
    st.lists(
        st.tuples(st.sampled_from([SERVED, "a", "b", "c"]), st.integers(1, 50), st.integers(0, 2))
    )
)
def test_nobody_gets_more_than_who_waits_whatever_regions_sessions_name(
    events: list[tuple[str, int, int]],
) -> None:
    """While no replica lacks room."""
    queue, shares = AdmissionQueue(1000, AGEING_S), Shares()
    waiting: Counter[str] = Counter()
    for number, (tenant, cost, where) in enumerate(events):
        if tenant in WEIGHTS:
            request = replace(REQUEST, residency=((), ("us",), ("us", "eu"))[where])
            weight = WEIGHTS[tenant]
            queue.push(admitted(number, tenant, cost=cost, weight=weight, request=request))
            waiting[tenant] += 1
        elif waiting.total():
            head, _ = next_of(queue)
            shares.served(head.flow, head.cost)
            waiting[head.flow] -= 1
        shares.check([one for one in WEIGHTS if waiting[one]])


# --- QueueRate ---


def moving(interval_s: float, count: int = 50) -> QueueRate:
    """A queue from which one session left every so often, until `interval_s * count`."""
    rate = QueueRate()
    for _ in range(count + 1):
        rate.joined(0.0)
    for turn in range(1, count + 1):
        rate.served(turn * interval_s)
    return rate


def test_it_learns_the_time_between_two_that_leave() -> None:
    assert QueueRate().interval_s(0.0) == FIRST_INTERVAL_S
    assert moving(0.1).interval_s(5.0) == pytest.approx(0.1)


def test_it_does_not_tell_before_it_knows() -> None:
    assert not moving(0.1, MIN_SAMPLES - 1).is_known
    assert moving(0.1, MIN_SAMPLES).is_known


def test_a_queue_that_stands_still_is_seen() -> None:
    assert moving(0.1).interval_s(5.0 + 8.0) == pytest.approx(2.0)


def test_time_in_which_nobody_waited_does_not_count() -> None:
    rate = moving(0.1)
    rate.gave_up()
    assert rate.interval_s(1000.0) == pytest.approx(0.1)
    rate.joined(1000.0)
    rate.served(1000.1)
    assert rate.interval_s(1000.1) == pytest.approx(0.1)


def test_those_who_are_refused_are_told_one_time_after_the_other() -> None:
    rate = moving(0.1)
    rate.gave_up()
    delays = [rate.retry_delay_s(2.0, 5.0) for _ in range(3)]
    assert delays == pytest.approx([2.1, 2.2, 2.3])
    assert rate.retry_delay_s(0.0, 60.0) == pytest.approx(0.1), "old promises are over"
