"""Counts of what followed: confidence, back-off, bounds."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from outrider.speculation.ngrams import (
    LONG_CONTEXT,
    MAX_ORDER,
    NUM_BINS,
    NUM_TABLES,
    NgramMemory,
    NgramPrior,
    extended,
    keys,
    pack,
    unpack,
)

IDS = st.integers(0, (1 << 20) - 1)


LENGTHS = (*range(1, MAX_ORDER + 1), LONG_CONTEXT)


@given(st.lists(IDS, max_size=14), st.lists(IDS, max_size=14))
def test_contexts_share_a_key_only_if_they_are_equal(a: list[int], b: list[int]) -> None:
    for length, one, other in zip(LENGTHS, keys(a), keys(b), strict=False):
        assert (one == other) == (a[-length:] == b[-length:])
    assert len(keys(a)) == sum(length <= len(a) for length in LENGTHS)


@given(st.lists(IDS, min_size=LONG_CONTEXT, max_size=16), IDS)
def test_keys_are_extended_token_by_token(context: list[int], token: int) -> None:
    assert extended(keys(context), token) == keys([*context, token])


def test_what_followed_a_long_context_once_outweighs_what_often_follows_short_ones() -> None:
    memory = NgramMemory()
    long = list(range(30, 30 + LONG_CONTEXT - 2))
    for turn in range(6):
        memory.learn(keys([*range(turn * 100 + 50, turn * 100 + 62), 1, 2]), 5)
    memory.learn(keys([*long, 1, 2]), 6)
    assert memory.find(keys([*long, 1, 2])) == (6, MAX_ORDER * NUM_BINS)
    assert memory.find(keys([99, *long[1:-1], 98, 1, 2])) == (5, 2 * NUM_BINS - 1)


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
        assert memory.num_entries <= 2 * 50 * NUM_TABLES
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
