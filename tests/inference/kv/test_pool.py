"""What the KV pool does in the cases one thinks of; test_pool_model finds the others."""

from __future__ import annotations

import pytest

from services.inference.kv.pool import BlockCopy, KvPool

BLOCK = 4


def filled(pool: KvPool, session: int, ids: list[int], salt: bytes = b"") -> int:
    """Open, compute and publish `ids`; the number of tokens that were cached."""
    cached = pool.open(session, ids, salt)
    pool.grow(session, len(ids))
    pool.commit(session, ids, len(ids))
    return cached


def test_a_prompt_seen_before_is_reused() -> None:
    pool = KvPool(8, BLOCK)
    assert filled(pool, 1, [1, 2, 3, 4, 5, 6]) == 0
    assert filled(pool, 2, [1, 2, 3, 4, 9, 9]) == 4
    assert pool.blocks(1)[0] == pool.blocks(2)[0]
    assert pool.blocks(1)[1] != pool.blocks(2)[1]
    pool.check_invariants()


@pytest.mark.parametrize(("min_rows", "cached"), [(0, 7), (1, 7), (2, 6), (4, 4), (5, 3)])
def test_a_wholly_cached_prompt_still_computes_its_end(min_rows: int, cached: int) -> None:
    pool = KvPool(8, BLOCK, min_rows=min_rows)
    ids = [1, 2, 3, 4, 5, 6, 7, 8]
    filled(pool, 1, ids)
    assert pool.match(ids, b"") == cached
    assert pool.open(2, ids, b"") == cached


def test_a_block_that_begins_alike_is_copied() -> None:
    pool = KvPool(8, BLOCK)
    filled(pool, 1, [1, 2, 3, 4, 5, 6, 7, 8])
    filled(pool, 2, [1, 2, 3, 4, 5, 9, 9, 9])
    pool.take_copies()
    ids = [1, 2, 3, 4, 5, 6, 7, 0, 0]
    assert pool.match(ids, b"") == 7
    assert pool.open(3, ids, b"") == 7
    assert pool.take_copies() == (BlockCopy(3, pool.blocks(1)[1], pool.blocks(3)[1]),)
    assert pool.take_copies() == ()
    assert pool.reuse(3, ids, 7) == 7
    assert pool.take_copies() == ()
    pool.check_invariants()


def test_a_beginning_that_is_computed_already_is_not_copied() -> None:
    pool = KvPool(8, BLOCK)
    filled(pool, 1, [1, 2, 3, 4, 5])
    pool.open(2, [1, 2, 3, 9, 9], b"x")
    pool.grow(2, 3)
    pool.open(3, [1, 2, 9, 9, 9], b"")
    assert pool.take_copies() == (BlockCopy(3, pool.blocks(1)[0], pool.blocks(3)[0]),)
    assert pool.reuse(3, [1, 2, 9, 9, 9], 2) == 2
    assert pool.reuse(2, [1, 2, 3, 9, 9], 3) == 3
    assert pool.take_copies() == ()


def test_a_copy_is_not_made_for_a_session_that_is_gone() -> None:
    pool = KvPool(8, BLOCK)
    filled(pool, 1, [1, 2, 3, 4, 5])
    assert pool.open(2, [1, 2, 9], b"") == 2
    pool.release(2)
    assert pool.take_copies() == ()


def test_a_source_may_become_the_target_of_a_later_copy() -> None:
    pool = KvPool(3, BLOCK)
    for session, ids in ((1, [1, 2, 3, 4]), (2, [5, 6, 7, 8])):
        filled(pool, session, ids)
        pool.release(session)
    assert pool.open(3, [1, 2, 9], b"") == 2
    assert pool.open(4, [5, 6, 9], b"") == 2
    first, second = pool.take_copies()
    assert (first.source, second.target) == (0, 0)
    assert (first.target, second.source) == (2, 1)


def test_without_room_nothing_is_copied() -> None:
    pool = KvPool(1, BLOCK)
    filled(pool, 1, [1, 2, 3, 4])
    assert pool.open(2, [1, 2, 9], b"") == 0
    pool.check_invariants()


def test_the_last_idle_block_is_taken_over_where_it_is() -> None:
    pool = KvPool(1, BLOCK)
    filled(pool, 1, [1, 2, 3, 4])
    pool.release(1)
    assert pool.open(2, [1, 2, 9], b"") == 2
    assert pool.take_copies() == ()
    assert pool.num_cached == 0
    pool.check_invariants()


def test_tenants_do_not_see_each_others_prefixes() -> None:
    pool = KvPool(8, BLOCK)
    filled(pool, 1, [1, 2, 3, 4, 5], b"a")
    assert pool.match([1, 2, 3, 4, 5], b"a") == 4
    assert pool.match([1, 2, 3, 4, 5], b"b") == 0
    assert pool.open(2, [1, 2, 3, 4, 5], b"b") == 0
    assert pool.open(3, [1, 2, 3, 9, 9], b"c") == 0
    assert pool.take_copies() == ()
    filled(pool, 4, [1, 2, 3, 4, 5], b"")
    assert len({int(pool.blocks(session)[0]) for session in (1, 4)}) == 2


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


def test_a_prefix_published_meanwhile_is_taken_over() -> None:
    pool = KvPool(8, BLOCK)
    ids = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    for session in (1, 2):
        pool.open(session, ids, b"")
        pool.grow(session, 2)
    pool.grow(1, 9)
    pool.commit(1, ids, 9)
    assert pool.reuse(2, ids, 0) == 8
    assert list(pool.blocks(2)) == list(pool.blocks(1)[:2])
    pool.check_invariants()


def test_a_copy_into_a_block_that_is_given_back_is_not_made() -> None:
    pool = KvPool(8, BLOCK)
    pool.open(1, [1, 2, 3], b"")
    pool.grow(1, 3)
    filled(pool, 2, [1, 2, 3, 4, 5], b"")
    assert pool.reuse(1, [1, 2, 3], 0) == 2
    assert pool.reuse(1, [1, 2, 3, 4, 5, 6], 2) == 4
    assert pool.take_copies() == ()
    pool.check_invariants()


def test_scratch_is_covered() -> None:
    pool = KvPool(8, BLOCK, scratch_tokens=3)
    pool.open(1, [1], b"")
    pool.grow(1, 2)
    assert len(pool.blocks(1)) == 2
    pool.truncate(1, 1)
    assert len(pool.blocks(1)) == 1


def test_an_impossible_growth_changes_nothing() -> None:
    pool = KvPool(3, BLOCK)
    filled(pool, 1, [1, 2, 3, 4])
    pool.release(1)
    pool.open(2, [9], b"")
    assert pool.num_missing(2, 13) == 4 > pool.num_free
    assert not pool.grow(2, 13)
    assert pool.match([1, 2, 3, 4, 5], b"") == 4
    assert pool.num_missing(2, 12) == 3 == pool.num_free
    assert pool.grow(2, 12)
    assert pool.match([1, 2, 3, 4, 5], b"") == 0
    pool.check_invariants()


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


def test_a_session_has_one_table() -> None:
    pool = KvPool(3, BLOCK)
    pool.open(1, [1], b"")
    with pytest.raises(RuntimeError, match="already has a KV table"):
        pool.open(1, [1], b"")
