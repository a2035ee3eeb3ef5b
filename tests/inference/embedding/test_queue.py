"""What waits for tokenizers and engines, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.embedding import Ids, padded_tokens
from outrider.errors import FrameTooLargeError, OverloadedError
from outrider.fair_work.turns import Requester
from outrider.session.types import Priority
from services.inference.embedding.queue import EmbeddingQueue
from services.inference.embedding_limits import EmbeddingLimits

LOW, MEDIUM, HIGH = Priority.LOW, Priority.MEDIUM, Priority.HIGH
LIMITS = EmbeddingLimits(
    max_inputs=12,
    max_text_bytes=1000,
    max_input_bytes=200,
    max_buffered_tokens=64,
    max_batch_tokens=48,
    max_batch_texts=3,
    max_wait_ms=20.0,
    starvation_ms=500.0,
)


def ids_of(count: int) -> Ids:
    return np.zeros(count, np.int32)


def filled(*inputs: tuple[int, Priority, float]) -> EmbeddingQueue:
    """With inputs of so many tokens, of a class, that came then; their keys count from 0."""
    queue = EmbeddingQueue(LIMITS)
    for key, (count, priority, at) in enumerate(inputs):
        queue.add(key, count, priority, None, at, ids=ids_of(count))
    return queue


def batches(queue: EmbeddingQueue, now: float) -> Iterator[tuple[int, ...]]:
    while (batch := queue.next_batch(now)) is not None:
        yield batch.keys


def test_longer_texts_first_and_one_length_in_a_call() -> None:
    queue = filled((10, MEDIUM, 0.0), (30, MEDIUM, 0.0), (9, MEDIUM, 0.0), (32, MEDIUM, 0.0))
    assert list(batches(queue, 0.001)) == [(1,), (3,), (0, 2)]


def test_calls_are_of_powers_of_two_and_leave_idle_engines_their_part() -> None:
    limits = EmbeddingLimits(max_batch_tokens=1024, max_batch_texts=64)
    for num_idle, sizes in ((1, [16, 8, 2]), (2, [8, 8, 4, 2, 2, 1, 1]), (30, [1] * 26)):
        queue = EmbeddingQueue(limits)
        for key in range(26):
            queue.add(key, 160, MEDIUM, None, 0.0, ids=ids_of(40))
        made = []
        while (batch := queue.next_batch(0.0, num_idle)) is not None:
            made.append(len(batch.keys))
        assert made == sizes


def test_whoever_waited_long_enough_is_next() -> None:
    queue = filled((10, MEDIUM, 0.0), (30, MEDIUM, 0.01), (11, MEDIUM, 0.02))
    assert list(batches(queue, 0.0201)) == [(0, 2), (1,)]


def test_higher_classes_first_and_others_fill_their_call() -> None:
    queue = filled((10, LOW, 0.0), (30, LOW, 0.0), (12, HIGH, 0.1), (8, MEDIUM, 0.1))
    assert list(batches(queue, 0.1)) == [(2, 0), (3,), (1,)]


def test_nobody_starves() -> None:
    """Though there is always one of a higher class."""
    queue = filled((10, LOW, 0.0))
    for key in range(1, 4):
        queue.add(key, 30, HIGH, None, 0.5, ids=ids_of(30))
        assert next(batches(queue, 0.5)) == (key,)
    queue.add(4, 30, HIGH, None, 0.5, ids=ids_of(30))
    assert list(batches(queue, 0.5)) == [(0,), (4,)]


@pytest.mark.parametrize("tokenized", [True, False])
def test_a_backlog_that_starves_leaves_higher_classes_three_calls_of_four(tokenized: bool) -> None:
    limits = EmbeddingLimits(max_batch_texts=1, max_buffered_tokens=16)
    queue = EmbeddingQueue(limits)

    def add(key: int, priority: Priority, at: float) -> None:
        ids = ids_of(16) if tokenized else None
        queue.add(key, 64, priority, None, at, ids=ids)

    def next_call() -> int:
        while (text := queue.next_text(10.0)) is not None:
            queue.tokenized(text, ids_of(16))
        batch = queue.next_batch(10.0)
        assert batch is not None
        return batch.keys[0]

    for key in range(100):
        add(key, LOW, 0.0)
    for _ in range(5):
        assert next_call() < 100
    for key in range(100, 112):
        add(key, HIGH, 9.9)
    served = [next_call() >= 100 for _ in range(16)]
    assert sum(served) == 12
    assert served[0]
    assert all(any(served[at : at + 2]) for at in range(15))


def test_what_is_held_is_bounded() -> None:
    queue = EmbeddingQueue(LIMITS)
    with pytest.raises(FrameTooLargeError):
        queue.add(0, 201, MEDIUM, None, 0.0)
    for key in range(5):
        queue.add(key, 200, MEDIUM, None, 0.0)
    with pytest.raises(OverloadedError):
        queue.add(6, 1, MEDIUM, None, 0.0)
    assert queue.finished(0)
    for key in range(10, 18):
        queue.add(key, 4, MEDIUM, None, 0.0)
    with pytest.raises(OverloadedError):
        queue.add(20, 4, MEDIUM, None, 0.0)


def test_whoever_has_most_loses_the_newest_inputs_to_others() -> None:
    queue = EmbeddingQueue(LIMITS)
    flood, other = Requester("flood"), Requester("other")
    for key in range(1, 13):
        assert queue.add(key, 4, MEDIUM, None, 0.0, requester=flood) == []
    assert queue.next_text(0.0) == 1
    assert queue.add(13, 4, MEDIUM, None, 0.0, requester=other) == [12]
    assert queue.finished(12)
    with pytest.raises(OverloadedError):
        queue.add(14, 4, MEDIUM, None, 0.0, requester=flood)
    assert len(queue) == 12


def test_whoever_has_most_bytes_loses_some() -> None:
    queue = EmbeddingQueue(LIMITS)
    large, small = Requester("large"), Requester("small")
    for key in range(1, 6):
        queue.add(key, 190, MEDIUM, None, 0.0, requester=large)
    assert queue.add(6, 100, MEDIUM, None, 0.0, requester=small) == [5]


Step = tuple[str, int, int, Priority]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["text", "ids", "tokenize", "batch", "cancel", "expire", "wait"]),
        st.integers(0, 30),
        st.integers(1, 60),
        st.sampled_from([LOW, MEDIUM, HIGH]),
    ),
    max_size=120,
)


@given(STEPS)
def test_every_input_is_taken_once_within_all_bounds(steps: list[Step]) -> None:
    """Whatever comes in whatever order: no input is lost or computed twice, calls are of one length
    and within the budget, and when all is over nothing is held."""
    queue, now, last = EmbeddingQueue(LIMITS), 0.0, 0
    open_keys: set[int] = set()
    lengths: dict[int, int] = {}
    tokenizing: list[int] = []
    computed: set[int] = set()

    def tokenize() -> bool:
        before = queue.num_buffered_tokens
        key = queue.next_text(now)
        assert key is None or before < LIMITS.max_buffered_tokens
        if key is not None:
            tokenizing.append(key)
        return key is not None

    def hand_over() -> None:
        while tokenizing:
            key = tokenizing.pop()
            queue.tokenized(key, ids_of(lengths[key]))

    def compute() -> bool:
        batch = queue.next_batch(now)
        if batch is None:
            return False
        assert {padded_tokens(len(ids)) for ids in batch.texts} == {batch.padded_tokens}
        assert len(batch.keys) == len(batch.texts) <= LIMITS.max_batch_texts
        total = len(batch.keys) * batch.padded_tokens
        assert total <= LIMITS.max_batch_tokens or len(batch.keys) == 1
        for key in batch.keys:
            assert key not in computed and key in open_keys
            computed.add(key)
            open_keys.discard(key)
            assert queue.finished(key)
            assert not queue.finished(key)
        return True

    for what, number, length, priority in steps:
        if what in ("text", "ids"):
            last += 1
            lengths[last] = length
            deadline = now + number / 100 if number % 3 == 0 else None
            ids = ids_of(length) if what == "ids" else None
            try:
                queue.add(last, 4 * length % 200, priority, deadline, now, ids=ids)
                open_keys.add(last)
            except OverloadedError:
                assert len(open_keys) >= LIMITS.max_inputs or queue.num_tokens > 0
        elif what == "tokenize":
            tokenize()
            if number % 2:
                hand_over()
        elif what == "batch":
            compute()
        elif what == "cancel" and number in open_keys:
            open_keys.discard(number)
            assert queue.finished(number)
        elif what == "expire":
            for key in queue.expired(now):
                open_keys.discard(key)
                assert queue.finished(key)
        else:
            now += number / 1000
        assert len(queue) == len(open_keys) <= LIMITS.max_inputs
    while tokenize() or tokenizing or compute():
        hand_over()
    assert not open_keys
    assert len(queue) == queue.num_tokens == queue.num_buffered_tokens == 0


def test_a_flood_of_one_tenant_costs_another_the_call_that_runs() -> None:
    """Its first texts, tokenized or not, are next, and then they take turns."""
    limits = EmbeddingLimits(max_batch_texts=2, max_wait_ms=0.0, max_buffered_tokens=200)
    queue, owner = EmbeddingQueue(limits), dict[int, str]()
    for key in range(1000):
        owner[key] = "flood"
        queue.add(key, 40, MEDIUM, None, 0.0, requester=Requester("flood"))
    while (text := queue.next_text(0.0)) is not None:
        queue.tokenized(text, ids_of(12))
    for key in range(1000, 1010):
        owner[key] = "other"
        queue.add(key, 40, MEDIUM, None, 5.0, requester=Requester("other"))
    served: list[str] = []
    while len(served) < 40:
        batch = queue.next_batch(10.0)
        assert batch is not None
        served += [owner[key] for key in batch.keys]
        for key in batch.keys:
            queue.finished(key)
        while (text := queue.next_text(10.0)) is not None:
            queue.tokenized(text, ids_of(12))
    assert served.index("other") <= 4
    assert served.count("other") == 10 and served[:24].count("other") >= 9


@pytest.mark.parametrize("tokenized", [True, False])
def test_a_line_that_was_empty_goes_on_where_it_was(tokenized: bool) -> None:
    """A tenant that always has a call at work, and often nothing in line, takes turns with one that
    comes then: it does not wait until that has had as much."""
    queue = EmbeddingQueue(EmbeddingLimits(max_batch_texts=4))
    last = 0

    def add(tenant: str) -> int:
        nonlocal last
        last += 1
        queue.add(
            last,
            64,
            MEDIUM,
            None,
            0.0,
            ids=ids_of(16) if tokenized else None,
            requester=Requester(tenant),
        )
        return last

    def next_call() -> tuple[int, ...]:
        while (text := queue.next_text(0.0)) is not None:
            queue.tokenized(text, ids_of(16))
        batch = queue.next_batch(0.0)
        assert batch is not None
        return batch.keys

    at_work: tuple[int, ...] = ()
    for _ in range(100):
        for _ in range(4):
            add("steady")
        before, at_work = at_work, next_call()
        for key in before:
            queue.finished(key)
    for _ in range(500):
        add("new")
    key = add("steady")
    calls = 0
    while key not in at_work:
        at_work = next_call()
        calls += 1
    assert calls <= 2


def test_one_tenant_is_served_in_order_of_arrival() -> None:
    queue = EmbeddingQueue(LIMITS)
    for key, count in enumerate((12, 9, 10, 11, 12)):
        queue.add(key, count, MEDIUM, None, 0.0, ids=ids_of(count), requester=Requester("t"))
    assert [key for keys in batches(queue, 1.0) for key in keys] == [0, 1, 2, 3, 4]


def test_what_is_known_of_tenants_is_forgotten() -> None:
    queue = EmbeddingQueue(EmbeddingLimits())
    for key in range(500):
        queue.add(key, 40, MEDIUM, None, 0.0, requester=Requester(f"tenant {key}"))
        queue.finished(key)
    assert len(queue._texts[MEDIUM]) == len(queue._texts[MEDIUM]._clock.origins) == 0
