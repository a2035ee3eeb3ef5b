"""The job queue: short chats first, a worker left to them, nobody waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import OverloadedError
from outrider.tokenization.pool.job_queue import JobClass, JobQueue


def test_long_chats_leave_a_worker_to_short_ones() -> None:
    queue: JobQueue[str] = JobQueue(2, 10)
    for name in ("long 1", "long 2"):
        queue.put(name, JobClass.LONG)
    assert queue.take() == ("long 1", JobClass.LONG)
    assert queue.take() is None
    queue.put("short", JobClass.SHORT)
    assert queue.take() == ("short", JobClass.SHORT)
    queue.finish(JobClass.LONG)
    assert queue.take() == ("long 2", JobClass.LONG)


def test_a_long_chat_is_taken_after_eight_short_ones() -> None:
    queue: JobQueue[int] = JobQueue(1, 100)
    queue.put(99, JobClass.LONG)
    for number in range(20):
        queue.put(number, JobClass.SHORT)
    order = []
    while (taken := queue.take()) is not None:
        order.append(taken[0])
        queue.finish(taken[1])
    assert order.index(99) == 8 and len(order) == 21


@given(
    st.integers(1, 3),
    st.lists(st.one_of(st.sampled_from(JobClass), st.sampled_from(("take", "leave"))), max_size=80),
)
def test_whatever_comes_no_limit_is_passed_and_nothing_is_lost(
    num_workers: int, steps: list[JobClass | str]
) -> None:
    queue: JobQueue[int] = JobQueue(num_workers, 3)
    waiting: set[int] = set()
    running: list[JobClass] = []
    for number, step in enumerate(steps):
        if isinstance(step, JobClass):
            try:
                queue.put(number, step)
                waiting.add(number)
            except OverloadedError:
                assert len(waiting) + len(running) >= num_workers
        elif step == "take" and len(running) < num_workers:
            taken = queue.take()
            if taken is not None:
                waiting.remove(taken[0])
                running.append(taken[1])
        elif step == "leave" and running:
            queue.finish(running.pop())
        others = sum(kind is not JobClass.SHORT for kind in running)
        assert others <= max(1, num_workers - 1)
    for kind in running:
        queue.finish(kind)
    while (taken := queue.take()) is not None:
        waiting.remove(taken[0])
        queue.finish(taken[1])
    assert not waiting


def test_a_job_is_removed_only_while_it_waits() -> None:
    queue: JobQueue[str] = JobQueue(1, 1)
    queue.put("a", JobClass.TYPEAHEAD)
    assert queue.remove("a", JobClass.TYPEAHEAD)
    assert not queue.remove("a", JobClass.TYPEAHEAD)
    with pytest.raises(OverloadedError):
        for _ in range(3):
            queue.put("b", JobClass.TYPEAHEAD)
