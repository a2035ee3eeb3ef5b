"""What the index knows of prompts, case by case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.codec.block_hashes import root_hash
from services.router.prefix_index import prompt as prompt_module
from services.router.prefix_index.index import (
    PrefixIndex,
    PrefixIndexLimits,
    PrefixMatch,
    flags,
    mask_of,
    tokens_by_owner,
)
from services.router.prefix_index.prompt import PIECE_BLOCKS, HashedPrompt, HashMemo
from tests.router.prefix_index.prompts import IDS, hashes, packed

ALL = 0b1111
LONG = [token % 7 for token in range(100)]


def index(**limits: int | float) -> PrefixIndex:
    return PrefixIndex(PrefixIndexLimits(**limits))  # type: ignore[arg-type]


def hold(known: PrefixIndex, owner: int, ids: list[int], salt: bytes = b"", size: int = 2) -> None:
    known.store(owner, root_hash(salt), hashes(ids, salt, size))


def find(
    known: PrefixIndex, ids: list[int], salt: bytes = b"", size: int = 2, among: int = ALL
) -> list[PrefixMatch]:
    return known.match(known.prompt(packed(ids), salt), size, among)


def test_one_walk_finds_how_far_each_owner_goes() -> None:
    known = index()
    hold(known, 0, [1, 1, 2, 2, 3, 3])
    hold(known, 1, [1, 1, 2, 2])
    hold(known, 2, [1, 1, 9, 9])
    hold(known, 3, [7, 7])
    steps = find(known, [1, 1, 2, 2, 3, 3, 4])
    assert steps == [PrefixMatch(1, 0b100), PrefixMatch(2, 0b10), PrefixMatch(3, 0b1)]
    assert tokens_by_owner(steps, 2, 5).tolist() == [6, 4, 2, 0, 0]


def test_tenants_do_not_see_each_others_prompts() -> None:
    known = index()
    hold(known, 0, LONG, b"one")
    assert find(known, LONG, b"two") == []
    assert find(known, LONG, b"one") == [PrefixMatch(50, 0b1)]


def test_block_sizes_do_not_mix() -> None:
    known = index()
    hold(known, 0, LONG, size=4)
    assert find(known, LONG, size=2) == []
    assert find(known, LONG, size=4) == [PrefixMatch(25, 0b1)]


def test_a_full_index_forgets_the_leaf_used_least_recently() -> None:
    known = index(max_blocks=3)
    for token in (1, 2, 3):
        hold(known, 0, [token, token])
    assert find(known, [1, 1])  # of use now
    hold(known, 0, [4, 4])
    assert known.num_blocks == 3
    assert [bool(find(known, [token, token])) for token in (1, 2, 3, 4)] == [
        True,
        False,
        True,
        True,
    ]


def test_inner_blocks_outlive_their_leaves() -> None:
    known = index(max_blocks=4)
    hold(known, 0, [1, 1, 2, 2, 3, 3])
    hold(known, 0, [4, 4])
    hold(known, 0, [5, 5])
    assert find(known, [1, 1, 2, 2, 3, 3]) == [PrefixMatch(2, 0b1)]


def test_a_path_longer_than_the_index_is_kept_as_far_as_it_goes() -> None:
    known = index(max_blocks=10)
    hold(known, 0, LONG)
    assert find(known, LONG) == [PrefixMatch(10, 0b1)]
    known.check_invariants()


def test_what_is_expected_ends_by_itself() -> None:
    known = index(expected_s=5.0)
    asked = known.prompt(packed(LONG), b"")
    known.expect(2, asked, 2, now=100.0)
    assert known.match(asked, 2, ALL) == [PrefixMatch(50, 0b100)]
    known.sweep(104.0, 0)
    assert known.match(asked, 2, ALL) == [PrefixMatch(50, 0b100)]
    for now in (106.0, 112.0):
        known.sweep(now, 0)
    assert known.match(asked, 2, ALL) == []


def test_expecting_it_of_another_does_not_keep_it_for_the_first() -> None:
    known = index(expected_s=5.0)
    asked = known.prompt(packed(LONG), b"")
    known.expect(1, asked, 2, now=100.0)
    for now in (104.0, 109.0, 114.0):
        known.expect(2, asked, 2, now)
        known.sweep(now, 0)
    assert known.match(asked, 2, ALL) == [PrefixMatch(50, 0b100)]


def test_long_prompts_are_expected_no_further_than_the_bound() -> None:
    known = index(max_expected_depth=5)
    known.expect(0, known.prompt(packed(LONG), b""), 2, now=0.0)
    assert find(known, LONG) == [PrefixMatch(5, 0b1)]


# --- hashing ---


@given(IDS, st.integers(1, 5), st.integers(0, 80))
def test_blocks_are_named_as_replicas_name_them(ids: list[int], size: int, count: int) -> None:
    asked = HashedPrompt(packed(ids), b"salt", HashMemo(8))
    assert asked.num_tokens == len(ids)
    assert asked.chain(size).upto(count) == hashes(ids, b"salt", size)[:count]


@given(IDS, IDS, st.integers(1, 3))
def test_remembered_pieces_are_the_right_ones(one: list[int], other: list[int], size: int) -> None:
    memo = HashMemo(8)
    for ids in (one, other, one + other):
        assert HashedPrompt(packed(ids), b"", memo).chain(size).upto(999) == hashes(ids, b"", size)


def test_remembered_pieces_are_those_of_blocks_of_the_same_size() -> None:
    """Two fleets of one router may have blocks of different sizes."""
    memo, ids = HashMemo(8), LONG[: 2 * PIECE_BLOCKS]
    for size in (2, 4, 2):
        assert HashedPrompt(packed(ids), b"", memo).chain(size).upto(999) == hashes(ids, b"", size)


def test_nothing_is_hashed_beyond_what_the_index_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    num_hashed = 0
    new_hash = prompt_module._new_hash

    def counting() -> Any:
        nonlocal num_hashed
        num_hashed += 1
        return new_hash()

    monkeypatch.setattr(prompt_module, "_new_hash", counting)
    known = index()
    hold(known, 0, LONG[:6])
    find(known, LONG)
    assert num_hashed == 1 + PIECE_BLOCKS, "the piece in which knowledge ends, and its digest"
    num_hashed = 0
    find(known, LONG[1:])
    assert num_hashed == 2, "of a prompt that nobody has, the first block and the digest"
    known = index()
    hold(known, 0, LONG)
    known.prompt(packed(LONG), b"").chain(2).upto(3 * PIECE_BLOCKS)
    num_hashed = 0
    find(known, LONG[: 2 * 3 * PIECE_BLOCKS])
    assert num_hashed == 3, "pieces seen before cost one digest each"


# --- masks ---


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_masks_and_flags_are_the_same(bits: list[bool]) -> None:
    chosen = np.array(bits)
    mask = mask_of(chosen)
    assert mask == sum(1 << place for place, bit in enumerate(bits) if bit)
    assert flags(mask, len(bits)).tolist() == bits
