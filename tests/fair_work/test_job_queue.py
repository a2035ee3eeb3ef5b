"""The job queue: short chats first, a worker left to them, fair turns, nobody waits for ever."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import OverloadedError
from outrider.fair_work.job_queue import SLICE_SIZE, JobClass, JobQueue
from outrider.fair_work.turns import Requester

ONE = Requester("one")
OTHER = Requester("other")


def queue_of(num_workers: int, max_queued: int, max_size: int = 1 << 30) -> JobQueue[object]:
    return JobQueue(num_workers, max_queued, max_size)


def test_long_chats_leave_a_worker_to_short_ones() -> None:
    queue = queue_of(2, 10)
    for name in ("long 1", "long 2"):
        queue.put(name, JobClass.LONG, ONE, SLICE_SIZE)
    assert queue.take() == "long 1"
    assert queue.take() is None
    queue.put("short", JobClass.SHORT, ONE, 1)
    assert queue.take() == "short"
    queue.finish("long 1")
    assert queue.take() == "long 2"


def test_a_long_chat_is_taken_after_eight_short_ones() -> None:
    queue = queue_of(1, 100)
    queue.put(99, JobClass.LONG, ONE, SLICE_SIZE)
    for number in range(20):
        queue.put(number, JobClass.SHORT, ONE, 1)
    order = []
    while (taken := queue.take()) is not None:
        order.append(taken)
        queue.finish(taken)
    assert order.index(99) == 8 and len(order) == 21


@given(
    st.integers(1, 3),
    st.lists(
        st.one_of(
            st.tuples(
                st.sampled_from(JobClass),
                st.sampled_from((ONE, OTHER, Requester("one", "b"), Requester("one", "c"))),
                st.integers(0, 100_000),
            ),
            st.sampled_from(("take", "finish", "put back", "remove")),
        ),
        max_size=80,
    ),
)
def test_whatever_comes_no_limit_is_passed_and_nothing_is_lost(
    num_workers: int, steps: list[tuple[JobClass, Requester, int] | str]
) -> None:
    max_queued, max_size = 3, 150_000
    queue = queue_of(num_workers, max_queued, max_size)
    waiting: dict[object, tuple[JobClass, int]] = {}
    running: dict[object, tuple[JobClass, int]] = {}
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            job_class, requester, size = step
            given_up = []
            try:
                given_up = list(queue.put(number, job_class, requester, size))
                waiting[number] = job_class, size
            except OverloadedError:
                pass
            for one in given_up:
                del waiting[one]
        elif step == "take" and len(running) < num_workers:
            taken = queue.take()
            if taken is not None:
                running[taken] = waiting.pop(taken)
        elif step == "finish" and running:
            done, _ = running.popitem()
            queue.finish(done)
        elif step == "put back" and running:
            part, job = running.popitem()
            queue.put_back(part)
            waiting[part] = job  # all of it is still in memory
        elif step == "remove" and waiting:
            gone, _ = waiting.popitem()
            assert queue.remove(gone)
        others = sum(kind is not JobClass.SHORT for kind, _ in running.values())
        assert others <= max(1, num_workers - 1)
        for typed in (False, True):
            pending = [
                size
                for kind, size in [*waiting.values(), *running.values()]
                if (kind is JobClass.TYPEAHEAD) == typed
            ]
            assert len(pending) <= num_workers + max_queued
            assert len(pending) <= 1 or sum(pending) <= max_size
        chats = [kind for kind, _ in waiting.values() if kind is not JobClass.TYPEAHEAD]
        assert queue.num_waiting == len(chats)
    for one in running:
        queue.finish(one)
    while (taken := queue.take()) is not None:
        del waiting[taken]
        queue.finish(taken)
    assert not waiting


def test_a_job_is_removed_only_while_it_waits() -> None:
    queue = queue_of(1, 1)
    queue.put("a", JobClass.TYPEAHEAD, ONE, 1)
    assert queue.remove("a")
    assert not queue.remove("a")
    queue.put("b", JobClass.TYPEAHEAD, ONE, 1)
    queue.put("c", JobClass.TYPEAHEAD, ONE, 1)
    with pytest.raises(OverloadedError):
        queue.put("d", JobClass.TYPEAHEAD, ONE, 1)


def test_who_comes_behind_a_flood_of_long_texts_waits_for_one_slice_of_it() -> None:
    queue = queue_of(1, 100)
    for number in range(64):
        queue.put(("flood", number), JobClass.LONG, ONE, 5 * SLICE_SIZE)
    assert queue.take() == ("flood", 0)
    queue.put("mine", JobClass.LONG, OTHER, 2 * SLICE_SIZE)
    queue.put_back(("flood", 0))
    order = []
    for _ in range(4):
        taken = queue.take()
        order.append(taken == "mine")
        queue.put_back(taken)
    assert order == [True, False, True, False]


def test_what_an_origin_gets_is_shared_between_its_clients() -> None:
    queue = queue_of(1, 100)
    for number in range(30):
        queue.put(number, JobClass.SHORT, Requester("one", "flood"), 1000)
    queue.put("mine", JobClass.SHORT, Requester("one", "me"), 1000)
    queue.put("other", JobClass.SHORT, OTHER, 1000)
    order = [queue.take() for _ in range(4)]
    assert set(order[:2]) == {0, "other"}
    assert "mine" in order[2:]


def test_many_addresses_of_one_origin_take_no_more_than_its_share() -> None:
    queue, served = queue_of(1, 1000), Counter[str]()
    for number in range(100):
        queue.put(("one", number), JobClass.SHORT, Requester("one", str(number % 4)), 1000)
        queue.put(("other", number), JobClass.SHORT, OTHER, 1000)
    for _ in range(100):
        taken = queue.take()
        assert isinstance(taken, tuple)
        served[taken[0]] += 1
        queue.finish(taken)
    assert served == {"one": 50, "other": 50}


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_full_queue_gives_up_the_last_job_of_who_asks_for_most(size: int) -> None:
    """Full in places, or in characters."""
    queue, num_full = queue_of(1, 63, 6_400_000), 64
    crowd = deque[object]()
    for number in range(num_full):
        client = Requester("one", "greedy" if number % 4 else "modest")
        queue.put(number, JobClass.LONG, client, size)
        if number % 4:
            crowd.append(number)
    with pytest.raises(OverloadedError):
        queue.put("more", JobClass.LONG, Requester("one", "greedy"), size)
    assert queue.put("mine", JobClass.LONG, OTHER, size) == [crowd.pop()]
    assert queue.put("ours", JobClass.LONG, Requester("one", "modest"), size) == [crowd.pop()]


def test_a_text_that_is_half_done_is_not_the_last_one() -> None:
    queue = queue_of(1, 2)
    queue.put("half done", JobClass.LONG, ONE, 4 * SLICE_SIZE)
    for name in ("next", "last"):
        queue.put(name, JobClass.LONG, ONE, SLICE_SIZE)
    assert queue.take() == "half done"
    queue.put_back("half done")
    assert queue.put("mine", JobClass.LONG, OTHER, 1) == ["last"]


def test_a_text_counts_as_a_whole_until_it_is_done() -> None:
    queue = queue_of(1, 10, 8 * SLICE_SIZE)
    queue.put("whole", JobClass.LONG, ONE, 7 * SLICE_SIZE)
    for _ in range(6):
        assert queue.take() == "whole"
        queue.put_back("whole")
    with pytest.raises(OverloadedError):
        queue.put("more", JobClass.LONG, OTHER, 7 * SLICE_SIZE)
    assert queue.take() == "whole"
    queue.finish("whole")
    assert not queue.put("more", JobClass.LONG, OTHER, 7 * SLICE_SIZE)


def test_equally_greedy_ones_keep_what_they_have() -> None:
    queue = queue_of(1, 3)
    for number in range(4):
        queue.put(number, JobClass.SHORT, ONE if number % 2 else OTHER, 10)
    for requester in (ONE, OTHER):
        with pytest.raises(OverloadedError):
            queue.put("new", JobClass.SHORT, requester, 10)


def test_who_was_refused_often_is_not_behind_for_it() -> None:
    queue = queue_of(1, 1)
    first, second = Requester("one", "a"), Requester("one", "b")
    queue.put(0, JobClass.SHORT, first, 1000)
    queue.put(1, JobClass.SHORT, first, 1000)
    for _ in range(50):
        with pytest.raises(OverloadedError):
            queue.put(2, JobClass.SHORT, first, 1000)
    assert queue.take() == 0
    queue.finish(0)
    queue.put(3, JobClass.SHORT, second, 1500)
    assert queue.take() == 3  # it has had nothing
    queue.finish(3)
    queue.put(4, JobClass.SHORT, second, 1000)
    assert queue.take() == 1


def test_however_large_one_text_is_taken_if_nothing_else_is_pending() -> None:
    queue = queue_of(1, 3, 100)
    queue.put("large", JobClass.LONG, ONE, 1000)
    with pytest.raises(OverloadedError):
        queue.put("too much", JobClass.LONG, ONE, 1)
    assert queue.take() == "large"
    with pytest.raises(OverloadedError):
        queue.put("too much", JobClass.LONG, OTHER, 1)


def test_whoever_is_refused_costs_nobody_a_place() -> None:
    """Two of one origin are more than the new one, and one of them less: giving up the other would
    not make room enough."""
    queue = queue_of(1, 10, 100)
    for name in ("first", "second"):
        queue.put(name, JobClass.SHORT, ONE, 40)
    with pytest.raises(OverloadedError, match="2 requests already wait"):
        queue.put("large", JobClass.SHORT, OTHER, 70)
    assert queue.num_waiting == 2
    assert queue.take() == "first"
    queue.finish("first")
    assert queue.take() == "second"
