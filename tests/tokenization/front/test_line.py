"""The line: short chats first, a worker left to them, nobody waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import OverloadedError
from outrider.tokenization.front.line import Kind, Line


def test_long_chats_leave_a_worker_to_short_ones() -> None:
    line: Line[str] = Line(2, 10)
    for name in ("long 1", "long 2"):
        line.enter(name, Kind.LONG)
    assert line.take() == ("long 1", Kind.LONG)
    assert line.take() is None
    line.enter("short", Kind.SHORT)
    assert line.take() == ("short", Kind.SHORT)
    line.leave(Kind.LONG)
    assert line.take() == ("long 2", Kind.LONG)


def test_a_long_chat_is_taken_after_eight_short_ones() -> None:
    line: Line[int] = Line(1, 100)
    line.enter(99, Kind.LONG)
    for number in range(20):
        line.enter(number, Kind.SHORT)
    order = []
    while (taken := line.take()) is not None:
        order.append(taken[0])
        line.leave(taken[1])
    assert order.index(99) == 8 and len(order) == 21


@given(
    st.integers(1, 3),
    st.lists(st.one_of(st.sampled_from(Kind), st.sampled_from(("take", "leave"))), max_size=80),
)
def test_whatever_comes_no_limit_is_passed_and_nothing_is_lost(
    num_workers: int, steps: list[Kind | str]
) -> None:
    line: Line[int] = Line(num_workers, 3)
    waiting: set[int] = set()
    running: list[Kind] = []
    for number, step in enumerate(steps):
        if isinstance(step, Kind):
            try:
                line.enter(number, step)
                waiting.add(number)
            except OverloadedError:
                assert len(waiting) + len(running) >= num_workers
        elif step == "take" and len(running) < num_workers:
            taken = line.take()
            if taken is not None:
                waiting.remove(taken[0])
                running.append(taken[1])
        elif step == "leave" and running:
            line.leave(running.pop())
        others = sum(kind is not Kind.SHORT for kind in running)
        assert others <= max(1, num_workers - 1)
    for kind in running:
        line.leave(kind)
    while (taken := line.take()) is not None:
        waiting.remove(taken[0])
        line.leave(taken[1])
    assert not waiting


def test_a_job_is_removed_only_while_it_waits() -> None:
    line: Line[str] = Line(1, 1)
    line.enter("a", Kind.TYPED)
    assert line.remove("a", Kind.TYPED)
    assert not line.remove("a", Kind.TYPED)
    with pytest.raises(OverloadedError):
        for _ in range(3):
            line.enter("b", Kind.TYPED)
