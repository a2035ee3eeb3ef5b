"""Counts of what followed: confidence, back-off, bounds."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from outrider.speculation.ngrams import (
    MAX_ORDER,
    NUM_BINS,
    NgramMemory,
    NgramPrior,
    keys,
    pack,
    unpack,
)

IDS = st.integers(0, (1 << 20) - 1)


@given(st.lists(IDS, max_size=8), st.lists(IDS, max_size=8))
def test_contexts_share_a_key_only_if_they_are_equal(a: list[int], b: list[int]) -> None:
    for order, (one, other) in enumerate(zip(keys(a), keys(b), strict=False), 1):
        assert (one == other) == (a[-order:] == b[-order:])
    assert len(keys(a)) == min(len(a), MAX_ORDER)


@given(IDS, st.integers(1, 15))
def test_a_value_unpacks(token: int, confidence: int) -> None:
    assert unpack(pack(token, confidence)) == (token, confidence)


def test_the_longest_known_context_decides() -> None:
    memory = NgramMemory()
    memory.learn(keys([1, 2, 3]), 7)
    memory.learn(keys([9, 3]), 8)
    assert memory.find(keys([1, 2, 3])) == (7, 2 * NUM_BINS)
    assert memory.find(keys([5, 9, 3])) == (8, NUM_BINS)
    assert memory.find(keys([4])) is None
    assert memory.find([]) is None


def test_a_hit_raises_the_confidence_and_misses_hand_the_place_over() -> None:
    memory = NgramMemory()
    for _ in range(4):
        memory.learn(keys([1]), 5)
    assert memory.find(keys([1])) == (5, NUM_BINS - 1)
    for _ in range(4):
        memory.learn(keys([1]), 6)
    assert memory.find(keys([1])) == (6, 0)


def test_memory_is_bounded_and_keeps_what_is_used() -> None:
    memory, rng = NgramMemory(max_entries=50), random.Random(1)
    for turn in range(2000):
        memory.learn(keys([1, 2]), 3)
        memory.learn(keys([rng.randrange(10, 100_000), turn + 10]), turn)
        assert memory.num_entries <= 2 * 50 * MAX_ORDER
    found = memory.find(keys([1, 2]))
    assert found is not None and found[0] == 3


@given(st.lists(st.integers(0, 2), min_size=2, max_size=40))
def test_finds_a_token_that_did_follow(ids: list[int]) -> None:
    memory = NgramMemory()
    for at in range(1, len(ids)):
        memory.learn(keys(ids[:at]), ids[at])
    seen = Counter(pairwise(ids))
    found = memory.find(keys(ids[-1:]))
    if found is None:
        assert not any(first == ids[-1] for first, _ in seen)
    else:
        assert seen[ids[-1], found[0]]


def test_a_prior_backs_off_through_the_orders_it_has() -> None:
    one, two = keys([3, 4])
    prior = NgramPrior([{one: pack(8, 1)}, {two: pack(9, 4)}])
    assert prior.find(keys([1, 2, 3, 4])) == (9, NUM_BINS + 2)
    assert prior.find(keys([5, 4])) == (8, 0)
    assert prior.find(keys([4, 5])) is None
