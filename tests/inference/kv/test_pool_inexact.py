"""Blocks that were rounded on their way: what depends on them is known, and exact KV never does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.codec.block_hashes import block_hashes
from services.inference.kv.pool import KvPool

BLOCK = 4
EXACT, INEXACT = b"g", b"the same group, inexact"


class Run:
    """A sequence, and which physical blocks hold numbers that depend on rounded ones."""

    def __init__(self, pool: KvPool, sequence: int, ids: list[int], salt: bytes) -> None:
        self.pool, self.sequence, self.ids, self.salt = pool, sequence, ids, salt
        self.computed = pool.open(sequence, ids, salt)

    def load(self, rounded: dict[int, bool], index: int, *, is_inexact: bool = True) -> bool:
        """The KV of a block comes; whether it was of use."""
        block = self.pool.add_loaded(self.sequence, index, self.ids, "redis", is_inexact=is_inexact)
        if block is not None:
            rounded[block] = is_inexact
        return block is not None

    def copy(self, rounded: dict[int, bool]) -> None:
        """The copies that were asked for are made."""
        for copy in self.pool.take_copies():
            rounded[copy.target] = rounded[copy.source]

    def compute(self, rounded: dict[int, bool], count: int) -> None:
        """A chunk of at most `count` tokens, up to what is loaded; at least one is left."""
        pool = self.pool
        self.computed = pool.reuse(self.sequence, self.ids, self.computed)
        self.copy(rounded)
        end = min(self.computed + count, len(self.ids) - 1)
        if (loaded := pool.next_loaded(self.sequence, self.computed)) is not None:
            end = min(end, loaded)
        if end <= self.computed or not pool.grow(self.sequence, end):
            return
        table = pool.blocks(self.sequence).tolist()
        depends = any(rounded[it] for it in table[: self.computed // BLOCK])
        for index in range(self.computed // BLOCK, -(-end // BLOCK)):
            has_beginning = index * BLOCK < self.computed
            depends = depends or (has_beginning and rounded[table[index]])
            rounded[table[index]] = depends
        assert pool.is_inexact(self.sequence) or not depends, "what is computed is not labelled"
        self.computed = end
        pool.commit(self.sequence, self.ids, end)

    def names(self) -> list[bytes]:
        """Of its blocks, as they are asked for: the last one first."""
        return [*block_hashes(self.ids, BLOCK, self.salt)][::-1]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["load", "load", "compute", "compute", "compute", "end", "hold"]),
            st.integers(0, 3),
            st.integers(0, 9),
        ),
        max_size=60,
    )
)
def test_inexact_kv_is_never_mixed_with_exact_kv(steps: list[tuple[str, int, int]]) -> None:
    """Four sequences of one group that begin alike, two of which take inexact KV."""
    pool = KvPool(40, BLOCK, min_rows=2, scratch_tokens=1)
    rounded: dict[int, bool] = {}
    ids = [list(range(30)), [*range(18), *range(50, 62)]]
    runs: dict[int, Run] = {}
    for number, (what, which, amount) in enumerate(steps, 10):
        if which not in runs:
            salt = INEXACT if which < 2 else EXACT
            runs[which] = Run(pool, number, ids[which % 2], salt)
            runs[which].copy(rounded)
        run = runs[which]
        if what == "load":
            run.load(rounded, amount, is_inexact=which < 2)
        elif what == "compute":
            run.compute(rounded, 1 + amount)
        elif what == "end":
            pool.release(runs.pop(which).sequence)
        else:
            for takes_inexact in (False, True):
                held = pool.hold(-number, run.names(), takes_inexact=takes_inexact)
                assert takes_inexact or not any(rounded[it.block] for it in held)
                if held:
                    pool.release(-number)
        for one in runs.values():
            if one.salt == EXACT:
                assert not pool.is_inexact(one.sequence)
                table = pool.blocks(one.sequence)[: -(-one.computed // BLOCK)].tolist()
                assert not any(rounded[it] for it in table)
        pool.check_invariants()


def test_only_what_follows_a_rounded_block_is_inexact() -> None:
    pool, rounded = KvPool(32, BLOCK, min_rows=2, scratch_tokens=1), dict[int, bool]()
    run = Run(pool, 1, list(range(24)), INEXACT)
    assert run.load(rounded, 2)
    run.compute(rounded, BLOCK)
    assert not pool.is_inexact(1), "it waits until the blocks before it are there"
    run.compute(rounded, BLOCK)
    run.compute(rounded, BLOCK)
    assert pool.is_inexact(1)
    assert len(pool.hold(-1, run.names())) == 2, "the blocks before it are exact"
    pool.release(-1)
    assert len(pool.hold(-1, run.names(), takes_inexact=True)) >= 3
    pool.release(-1)
    assert not pool.hold(-1, run.names()[:-2]), "where none is exact, nothing is held"
    pool.release(1)
    # Who begins with the same exact blocks alone is not inexact either.
    other = Run(pool, 2, [*range(8), *range(90, 100)], INEXACT)
    other.compute(rounded, 1)
    assert other.computed >= 8 and not pool.is_inexact(2)


def test_a_copy_of_the_beginning_of_an_inexact_block_is_inexact() -> None:
    pool, rounded = KvPool(32, BLOCK, min_rows=2, scratch_tokens=1), dict[int, bool]()
    first = Run(pool, 1, list(range(12)), INEXACT)
    assert first.load(rounded, 0)
    first.compute(rounded, BLOCK)
    second = Run(pool, 2, [0, 1, 50, 51, *range(60, 70)], INEXACT)
    assert second.computed == 2, "two tokens are copied"
    second.compute(rounded, BLOCK)
    assert pool.is_inexact(2)
    assert not pool.hold(-1, second.names()), "what it published is inexact, too"
