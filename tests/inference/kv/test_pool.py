"""What test_pool_model does not vary: how a prompt ends, scratch, and what comes free together."""

from __future__ import annotations

import pytest

from services.inference.kv.pool import KvPool

BLOCK = 4


def filled(pool: KvPool, session: int, ids: list[int], salt: bytes = b"") -> int:
    """Open, compute and publish `ids`; the number of tokens that were cached."""
    cached = pool.open(session, ids, salt)
    pool.grow(session, len(ids))
    pool.commit(session, ids, len(ids))
    return cached


@pytest.mark.parametrize(("min_rows", "cached"), [(0, 7), (1, 7), (2, 6), (4, 4), (5, 3)])
def test_a_wholly_cached_prompt_still_computes_its_end(min_rows: int, cached: int) -> None:
    pool = KvPool(8, BLOCK, min_rows=min_rows)
    ids = [1, 2, 3, 4, 5, 6, 7, 8]
    filled(pool, 1, ids)
    assert pool.match(ids, b"") == cached
    assert pool.open(2, ids, b"") == cached


def test_scratch_is_covered() -> None:
    pool = KvPool(8, BLOCK, scratch_tokens=3)
    pool.open(1, [1], b"")
    pool.grow(1, 2)
    assert len(pool.blocks(1)) == 2
    pool.truncate(1, 1)
    assert len(pool.blocks(1)) == 1


def test_what_others_use_too_does_not_come_free() -> None:
    pool = KvPool(16, BLOCK)
    common = [1, 2, 3, 4, 5, 6, 7, 8]
    for sequence in (1, 2, 3):
        filled(pool, sequence, [*common, *[sequence + 10] * 6])
    assert len(pool.blocks(1)) == 4
    assert pool.num_releasable([]) == 0
    assert pool.num_releasable([1]) == 2
    assert pool.num_releasable([1, 3]) == 4
    num_free = pool.num_free
    for sequence in (1, 3):
        pool.release(sequence)
    assert pool.num_free == num_free + 4
    assert pool.num_releasable([2]) == 4


def test_blocks_are_used_as_long_as_a_sequence_has_them() -> None:
    pool = KvPool(16, BLOCK)
    long, short = list(range(13)), [*range(8), 99, 99, 99, 99, 99]
    assert pool.num_used(long, b"") == 0
    filled(pool, 1, long)
    filled(pool, 2, short)
    assert (pool.num_used(long, b""), pool.num_used(long, b"x")) == (3, 0)
    assert pool.num_used(long[:7], b"") == 1
    pool.release(1)
    assert pool.num_used(long, b"") == 2, "the third is cached for nobody who runs"
    pool.release(2)
    assert pool.num_used(long, b"") == 0
    assert pool.match(long, b"") == 12


def test_a_session_has_one_table() -> None:
    pool = KvPool(3, BLOCK)
    pool.open(1, [1], b"")
    with pytest.raises(RuntimeError, match="already has a KV table"):
        pool.open(1, [1], b"")


def test_equal_blocks_computed_twice_are_kept_once() -> None:
    pool = KvPool(8, BLOCK)
    ids = [1, 2, 3, 4, 5]
    for session in (1, 2):
        pool.open(session, ids, b"")
        pool.grow(session, 5)
    assert pool.num_free == 4
    pool.commit(1, ids, 5)
    pool.commit(2, ids, 5)
    assert pool.num_free == 5
    assert pool.blocks(1)[0] == pool.blocks(2)[0]
    pool.check_invariants()
