"""Prefixes that are pinned under a salt of their own, and used under others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.codec.block_hashes import block_hashes
from services.inference.kv.events import BlockLedger
from services.inference.kv.pool import BlockCopy, KvPool

BLOCK = 4
STATIC = b"static"
PREFIX = [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9]
"""Ten tokens and two that fill the last block."""
NUM_PINNED = 3


def pool_with_prefix(num_blocks: int = 12) -> KvPool:
    pool = KvPool(num_blocks, BLOCK)
    pool.record()
    pool.open(1, PREFIX, STATIC)
    pool.grow(1, len(PREFIX))
    pool.commit(1, PREFIX, len(PREFIX))
    assert len(pool.hold(-1, [*block_hashes(PREFIX, BLOCK, STATIC)][::-1])) == NUM_PINNED
    pool.release(1)
    assert pool.num_free == num_blocks - NUM_PINNED
    return pool


def compute(pool: KvPool, sequence: int, ids: list[int]) -> None:
    assert pool.grow(sequence, len(ids))
    pool.commit(sequence, ids, len(ids))


def test_groups_use_what_is_pinned_and_share_nothing_else() -> None:
    pool = pool_with_prefix()
    ids = [*PREFIX[:10], 20, 21, 22]
    for sequence, salt in ((2, b"one"), (3, b"another")):
        assert pool.match(ids, salt, (STATIC,)) == 10
        assert pool.open(sequence, ids, salt, (STATIC,)) == 10
        (copy,) = pool.take_copies()
        assert copy == BlockCopy(sequence, pool.blocks(-1)[2], pool.blocks(sequence)[2])
        assert pool.blocks(sequence)[:2].tolist() == pool.blocks(-1)[:2].tolist()
        compute(pool, sequence, ids)
        pool.check_invariants()
    assert pool.blocks(2)[2] != pool.blocks(3)[2]
    assert pool.match(ids, b"third") == 0, "whose operator did not say so"
    assert pool.match(ids, b"third", (b"not registered",)) == 0


def test_an_alias_goes_with_what_is_below_it() -> None:
    pool = pool_with_prefix()
    ledger = BlockLedger()
    pool.open(2, PREFIX, b"one", (STATIC,))
    ledger.add(pool.take_events())
    assert pool.num_cached == NUM_PINNED + 2
    pool.release(2)
    ledger.add(pool.take_events())
    assert pool.num_cached == NUM_PINNED, "nothing of the group's own is below it"

    ids = [*PREFIX[:8], *[30] * 8]
    pool.open(3, ids, b"one", (STATIC,))
    compute(pool, 3, ids)
    pool.release(3)
    assert pool.match([*ids, 0], b"one") == 16
    pool.check_invariants()
    # Another group needs all there is: the first one's blocks go, the pinned ones stay.
    pool.open(4, [40] * 4 * 9, b"another", (STATIC,))
    assert pool.grow(4, 4 * 9) and not pool.num_free
    ledger.add(pool.take_events())
    assert pool.num_cached == NUM_PINNED and not pool.grow(4, 4 * 10)
    assert pool.match([*PREFIX, 0], STATIC) == len(PREFIX)
    pool.check_invariants()


@pytest.mark.parametrize("comes_first", [False, True])
def test_a_prefix_that_a_group_has_computed_itself(comes_first: bool) -> None:
    """Sessions of one group may differ in what they may use."""
    pool = pool_with_prefix()
    ids = [*PREFIX[:8], 20]
    pool.open(2, ids, b"one", (STATIC,) if comes_first else ())
    compute(pool, 2, ids)
    assert pool.open(3, [*PREFIX, 7], b"one", (STATIC,)) == 12
    pool.check_invariants()
    for sequence in (2, 3):
        pool.release(sequence)
        pool.check_invariants()
    while pool.num_cached > NUM_PINNED:
        pool.open(4, [50] * 4 * 9, b"x")
        pool.grow(4, 4 * 9)
        pool.release(4)
        pool.check_invariants()


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"one", b"another"]),
            st.booleans(),
            st.integers(0, len(PREFIX)),
            st.lists(st.integers(1, 3), min_size=1, max_size=9),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_whatever_comes_finds_what_is_its_own(
    opens: list[tuple[bytes, bool, int, list[int], bool]],
) -> None:
    """Memory holds what was written for the salt or pinned, and the events make sense."""
    pool = pool_with_prefix()
    ledger = BlockLedger()
    memory = {
        (int(block), slot): (STATIC, tuple(PREFIX[: index * BLOCK + slot + 1]))
        for index, block in enumerate(pool.blocks(-1))
        for slot in range(BLOCK)
    }
    live: list[int] = []
    allowed: set[bytes] = set()
    """Groups with a session that might use it: the others' sessions find what that one used."""
    for sequence, (salt, is_allowed, num_prefix, tail, stays) in enumerate(opens, 2):
        ids = [*PREFIX[:num_prefix], *tail]
        statics = (STATIC,) if is_allowed else ()
        allowed.update([salt] if is_allowed else [])
        expected = pool.match(ids, salt, statics)
        num_cached = pool.open(sequence, ids, salt, statics)
        for copy in pool.take_copies():
            for slot in range(BLOCK):
                if (copy.source, slot) in memory:
                    memory[copy.target, slot] = memory[copy.source, slot]
        assert num_cached <= expected
        for number in range(num_cached):
            block = int(pool.blocks(sequence)[number // BLOCK])
            whose, known = memory[block, number % BLOCK]
            assert known == tuple(ids[: number + 1])
            assert whose == salt or (whose == STATIC and salt in allowed)
        if pool.grow(sequence, len(ids)):
            blocks = pool.blocks(sequence)
            for number in range(num_cached, len(ids)):
                memory[int(blocks[number // BLOCK]), number % BLOCK] = (
                    salt,
                    tuple(ids[: number + 1]),
                )
            pool.commit(sequence, ids, len(ids))
        if stays and len(live) < 2:
            live.append(sequence)
        else:
            release(pool, [sequence])
        ledger.add(pool.take_events())
        pool.check_invariants()
    if live:
        num_free = pool.num_free + pool.num_releasable(live)
        release(pool, live)
        assert pool.num_free <= num_free
    pool.check_invariants()
    assert pool.num_free == 12 - NUM_PINNED


def release(pool: KvPool, sequences: list[int]) -> None:
    """One by one; of each it is known before what comes free."""
    for sequence in sequences:
        num_free = pool.num_free + pool.num_releasable([sequence])
        pool.release(sequence)
        assert pool.num_free == num_free


def test_what_is_pinned_does_not_come_free_with_those_that_use_it() -> None:
    pool = pool_with_prefix()
    groups = {2: b"one", 3: b"another", 4: b"third"}
    for sequence, salt in groups.items():
        ids = [*PREFIX, *[20 + sequence] * 3]
        assert pool.open(sequence, ids, salt, (STATIC,)) == len(PREFIX)
        assert pool.grow(sequence, len(ids))
    assert pool.num_releasable([2]) == 1 and pool.num_releasable(list(groups)) == 3
    # Of one group: its own blocks behind the pinned ones come free with the last that uses them.
    own = [*PREFIX, *[30] * 4, 31]
    pool.open(5, own, b"one", (STATIC,))
    compute(pool, 5, own)
    pool.open(6, own, b"one", (STATIC,))
    assert pool.num_releasable([6]) == 0 and pool.num_releasable([5]) == 1
    assert pool.num_releasable([2, 5, 6]) >= 3
    release(pool, [6, 2, 5, 3, 4])
    assert pool.num_free == 12 - NUM_PINNED
