"""Blocks that are loaded from elsewhere, and blocks that are held to be copied out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.codec.block_hashes import block_hashes
from services.inference.kv.pool import KvPool

BLOCK = 4


def names(ids: list[int], salt: bytes) -> list[bytes]:
    """Of the blocks of `ids`, as they are asked for: the last one first."""
    return [*block_hashes(ids, BLOCK, salt)][::-1]


def pool_of(num_blocks: int = 32) -> KvPool:
    return KvPool(num_blocks, BLOCK, min_rows=2, scratch_tokens=1)


class Run:
    """A sequence that computes its ids block by block, and the memory it does so in."""

    def __init__(self, pool: KvPool, sequence: int, ids: list[int]) -> None:
        self.pool, self.sequence, self.ids = pool, sequence, ids
        self.computed = pool.open(sequence, ids, b"")

    def load(self, memory: dict[int, tuple[int, ...]], index: int) -> bool:
        """The KV of a block comes; whether it was of use."""
        block = self.pool.add_loaded(self.sequence, index, self.ids, "redis")
        if block is None:
            return False
        memory[block] = tuple(self.ids[: (index + 1) * BLOCK])
        return True

    def compute(self, memory: dict[int, tuple[int, ...]], count: int) -> None:
        """A chunk of at most `count` tokens, up to what is loaded; at least one is left."""
        pool = self.pool
        self.computed = pool.reuse(self.sequence, self.ids, self.computed)
        pool.take_copies()
        end = min(self.computed + count, len(self.ids) - 1)
        if (loaded := pool.next_loaded(self.sequence, self.computed)) is not None:
            end = min(end, loaded)
        if end <= self.computed:
            return
        assert pool.grow(self.sequence, end)
        blocks = pool.blocks(self.sequence)
        for index in range(self.computed // BLOCK, -(-end // BLOCK)):
            memory[int(blocks[index])] = tuple(self.ids[: min(end, (index + 1) * BLOCK)])
        self.computed = end
        pool.commit(self.sequence, self.ids, end)

    def check(self, memory: dict[int, tuple[int, ...]]) -> None:
        """What counts as computed holds the right KV."""
        blocks = self.pool.blocks(self.sequence)
        for index in range(self.computed // BLOCK):
            assert memory[int(blocks[index])] == tuple(self.ids[: (index + 1) * BLOCK])


def test_what_waits_to_be_used_is_not_owed_and_comes_free() -> None:
    pool = pool_of()
    ids = list(range(4 * BLOCK))
    run = Run(pool, 1, ids)
    assert pool.num_missing(1, len(ids)) == pool.num_owed(1, len(ids)) == 5
    memory: dict[int, tuple[int, ...]] = {}
    assert run.load(memory, 2) and run.load(memory, 1)
    run.compute(memory, BLOCK - 1)
    assert pool.num_missing(1, len(ids)) == 4 and pool.num_owed(1, len(ids)) == 2
    assert pool.num_releasable([1]) == 3


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["load", "compute", "end", "hold"]),
            st.integers(0, 1),
            st.integers(0, 9),
        ),
        max_size=40,
    )
)
def test_loaded_blocks_count_once_all_before_them_are_there(
    steps: list[tuple[str, int, int]],
) -> None:
    """Two sequences that begin alike load, compute, publish for each other and end."""
    pool = pool_of(24)
    memory: dict[int, tuple[int, ...]] = {}
    ids = [list(range(30)), [*range(18), *range(50, 62)]]
    runs: dict[int, Run] = {}
    held: list[int] = []
    for number, (what, which, amount) in enumerate(steps, 10):
        if which not in runs:
            runs[which] = Run(pool, number, ids[which])
        run = runs[which]
        if what == "load":
            run.load(memory, amount)
        elif what == "compute":
            run.compute(memory, 1 + amount)
        elif what == "hold":
            named = pool.hold(-number, names(run.ids, b""))[::-1]
            held += [-number] if named else []
            assert [memory[it.block] for it in named] == [
                tuple(run.ids[: (n + 1) * BLOCK]) for n in range(len(named))
            ]
        else:
            pool.release(runs.pop(which).sequence)
        for one in runs.values():
            one.check(memory)
        pool.check_invariants()
    for one in runs.values():
        pool.release(one.sequence)
    for number in held:
        pool.release(number)
    pool.check_invariants()
    assert pool.num_free == pool.num_blocks, "all that is left is cached, and nobody's"


def test_a_chunk_ends_where_what_is_loaded_begins_and_goes_on_behind_it() -> None:
    pool, memory = pool_of(), dict[int, tuple[int, ...]]()
    run = Run(pool, 1, list(range(42)))
    for index in range(9, 3, -1):  # from the far end
        assert run.load(memory, index)
    run.compute(memory, 100)
    assert run.computed == 4 * BLOCK
    run.compute(memory, 1)
    assert run.computed == 10 * BLOCK + 1, "six blocks were not computed"
    run.check(memory)


def test_what_is_of_no_use_is_not_taken() -> None:
    pool, memory = pool_of(), dict[int, tuple[int, ...]]()
    run = Run(pool, 1, list(range(12)))
    assert not run.load(memory, 2), "two tokens are always left to compute"
    assert run.load(memory, 1) and not run.load(memory, 1), "it is loaded already"
    run.compute(memory, 12)
    run.compute(memory, 12)
    assert not run.load(memory, 0), "it is computed"


def test_without_a_free_block_nothing_is_loaded() -> None:
    pool = pool_of(num_blocks=3)
    first = Run(pool, 1, list(range(20)))
    memory = dict[int, tuple[int, ...]]()
    assert [first.load(memory, index) for index in range(4)] == [True, True, True, False]
    pool.release(1)
    assert pool.num_free == 3


def test_nothing_is_written_where_a_copy_has_yet_to_be_read() -> None:
    """The source of a copy is nobody's: it may be the next block to be given away."""
    pool, memory = pool_of(num_blocks=4), dict[int, tuple[int, ...]]()
    first = Run(pool, 1, list(range(8)))
    first.compute(memory, 8)
    pool.release(1)
    other = Run(pool, 2, [0, 1, 2, 99, *range(50, 62)])
    assert other.computed == 3, "the beginning of a published block is copied"
    assert not other.load(memory, 1)
    assert [copy.sequence for copy in pool.take_copies()] == [2]
    assert other.load(memory, 1)


def test_held_blocks_outlive_their_sequence_and_are_not_evicted() -> None:
    pool, memory = pool_of(num_blocks=4), dict[int, tuple[int, ...]]()
    run = Run(pool, 1, list(range(14)))
    run.compute(memory, 12)
    assert [it.block for it in pool.hold(-1, names(run.ids, b""))] == [2, 1, 0]
    assert pool.hold(-2, names(run.ids, b"another group")) == []
    pool.release(1)
    other = Run(pool, 2, [*range(100, 120)])
    assert not pool.grow(other.sequence, 8), "one block is left"
    pool.release(-1)
    assert pool.grow(other.sequence, 8)
    pool.hold(-1, names(run.ids, b""))
    with pytest.raises(RuntimeError, match="already has"):
        pool.hold(-1, names(run.ids, b""))


def test_what_is_kept_ahead_of_a_session_is_there_when_it_comes() -> None:
    pool, ids = pool_of(), list(range(5 * BLOCK + 3))
    assert pool.follow(-1, ids, b"g") == 0
    written = [pool.add_loaded(-1, index, ids, "ahead") for index in (0, 1, 3)]
    assert None not in written
    assert pool.publish_kept(-1, ids) == 2, "without the third block the fourth is of no use"
    pool.release(-1)
    pool.check_invariants()
    assert pool.num_free == pool.num_blocks and pool.num_cached == 2
    assert not pool.loaded_tokens, "no session has used any of it"
    # It goes on where it was.
    assert pool.follow(-2, ids, b"g") == 2
    assert pool.add_loaded(-2, 1, ids, "ahead") is None
    assert pool.add_loaded(-2, 2, ids, "ahead") is not None
    assert pool.publish_kept(-2, ids) == 3
    pool.release(-2)
    assert pool.open(1, ids, b"g") == 3 * BLOCK
    assert pool.open(2, ids, b"other") == 0, "another trust group finds nothing"
    pool.check_invariants()
