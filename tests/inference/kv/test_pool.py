"""The KV pool against a naive model that keeps every block's contents."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.inference.kv.pool import KvPool

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


@pytest.mark.parametrize(("min_rows", "cached"), [(0, 4), (1, 4), (2, 4), (4, 4), (5, 0)])
def test_a_wholly_cached_prompt_still_computes_its_end(min_rows: int, cached: int) -> None:
    pool = KvPool(8, BLOCK, min_rows=min_rows)
    ids = [1, 2, 3, 4, 5, 6, 7, 8]
    filled(pool, 1, ids)
    assert pool.match(ids, b"") == cached
    assert pool.open(2, ids, b"") == cached


def test_tenants_do_not_see_each_others_prefixes() -> None:
    pool = KvPool(8, BLOCK)
    filled(pool, 1, [1, 2, 3, 4, 5], b"a")
    assert pool.match([1, 2, 3, 4, 5], b"a") == 4
    assert pool.open(2, [1, 2, 3, 4, 5], b"b") == 0


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
    assert pool.reuse(2, ids) == 8
    assert list(pool.blocks(2)) == list(pool.blocks(1)[:2])
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
    assert not pool.can_grow(2, 13)
    with pytest.raises(RuntimeError, match="cannot grow session 2"):
        pool.grow(2, 13)
    assert pool.match([1, 2, 3, 4, 5], b"") == 4
    assert pool.can_grow(2, 12)
    pool.grow(2, 12)
    assert pool.match([1, 2, 3, 4, 5], b"") == 0
    pool.check_invariants()


def test_a_session_has_one_table() -> None:
    pool = KvPool(3, BLOCK)
    pool.open(1, [1], b"")
    with pytest.raises(RuntimeError, match="already has a KV table"):
        pool.open(1, [1], b"")


PROMPTS = st.builds(
    lambda blocks, tail: [token for block in blocks for token in [block] * BLOCK] + tail,
    st.lists(st.integers(0, 1), max_size=4),
    st.lists(st.integers(0, 1), min_size=1, max_size=3),
)
"""Few different blocks, so that sessions share, race and evict each other often."""


class Naive:
    """What a session should see: its ids, how many are computed, how many are published."""

    def __init__(self, ids: list[int], salt: bytes) -> None:
        self.ids = ids
        self.salt = salt
        self.computed = 0


class PoolMachine(RuleBasedStateMachine):
    """Sessions compute, speculate, publish and go. `memory` is what an engine would have written;
    `cache` is the naive cache: full prefixes with the time they fell idle."""

    NUM_BLOCKS = 9
    SCRATCH = 1
    MIN_ROWS = 2

    def __init__(self) -> None:
        super().__init__()
        self.pool = KvPool(
            self.NUM_BLOCKS, BLOCK, min_rows=self.MIN_ROWS, scratch_tokens=self.SCRATCH
        )
        self.memory: dict[tuple[int, int], object] = {}
        self.live: dict[int, Naive] = {}
        self.cache: dict[tuple[bytes, tuple[int, ...]], int] = {}
        self.clock = 0
        self.next_session = 0

    def prefixes(self, session: Naive, num_tokens: int) -> list[tuple[bytes, tuple[int, ...]]]:
        full = num_tokens // BLOCK * BLOCK
        return [(session.salt, tuple(session.ids[:n])) for n in range(BLOCK, full + 1, BLOCK)]

    def published(self, session: Naive) -> list[tuple[bytes, tuple[int, ...]]]:
        return self.prefixes(session, session.computed)

    def in_use(self) -> set[tuple[bytes, tuple[int, ...]]]:
        return {key for session in self.live.values() for key in self.published(session)}

    def private_blocks(self) -> int:
        return sum(
            len(self.pool.blocks(number)) - session.computed // BLOCK
            for number, session in self.live.items()
        )

    def write(self, number: int, past: int, tokens: list[int], history: list[int]) -> None:
        blocks = self.pool.blocks(number)
        for place in range(past, past + len(tokens)):
            content = tuple(history[:past]) + tuple(tokens[: place - past + 1])
            self.memory[int(blocks[place // BLOCK]), place % BLOCK] = content
        garbage = past + len(tokens)
        for place in range(garbage, garbage + self.SCRATCH):
            self.memory[int(blocks[place // BLOCK]), place % BLOCK] = "garbage"

    def forget_evicted(self) -> None:
        """The naive cache drops idle prefixes, least recently idle first, to make room."""
        idle = sorted(self.cache.keys() - self.in_use(), key=lambda key: self.cache[key])
        while len(self.cache) + self.private_blocks() > self.NUM_BLOCKS:
            del self.cache[idle.pop(0)]

    @rule(ids=PROMPTS, salt=st.sampled_from([b"", b"", b"", b"x"]))
    def open(self, ids: list[int], salt: bytes) -> None:
        session = Naive(ids, salt)
        expected = 0
        for key in self.prefixes(session, len(ids) - self.MIN_ROWS):
            if key not in self.cache:
                break
            expected = len(key[1])
        self.next_session += 1
        assert self.pool.match(ids, salt) == expected
        assert self.pool.open(self.next_session, ids, salt) == expected
        session.computed = expected
        self.live[self.next_session] = session

    @precondition(lambda self: self.live)
    @rule(
        pick=st.integers(0),
        count=st.sampled_from([1, 3, 8, 20]),
        drafts=st.lists(st.integers(2, 3), max_size=6),
    )
    def compute(self, pick: int, count: int, drafts: list[int]) -> None:
        """A chunk of the session's tokens, with wrong drafts behind it that are cut again."""
        number = list(self.live)[pick % len(self.live)]
        session = self.live[number]
        tokens = session.ids[session.computed : session.computed + count]
        end = session.computed + len(tokens)
        drafts = drafts if end == len(session.ids) else []
        idle = len(self.cache.keys() - self.in_use())
        free = self.NUM_BLOCKS - len(self.cache) - self.private_blocks() + idle
        needed = self.pool.blocks_for(end + len(drafts)) - len(self.pool.blocks(number))
        assert self.pool.can_grow(number, end + len(drafts)) == (needed <= free)
        if needed > free or not tokens:
            return
        self.pool.grow(number, end + len(drafts))
        self.forget_evicted()
        self.write(number, session.computed, tokens + drafts, session.ids)
        self.pool.commit(number, session.ids, end)
        self.pool.truncate(number, end)
        session.computed = end
        self.cache.update(dict.fromkeys(self.published(session), 0))

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0), reply=st.lists(st.integers(0, 1), min_size=1, max_size=4))
    def extend(self, pick: int, reply: list[int]) -> None:
        session = self.live[list(self.live)[pick % len(self.live)]]
        session.ids = session.ids + reply

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0))
    def reuse(self, pick: int) -> None:
        number = list(self.live)[pick % len(self.live)]
        session = self.live[number]
        expected = session.computed // BLOCK * BLOCK
        for key in self.prefixes(session, len(session.ids) - self.MIN_ROWS):
            if len(key[1]) > expected and key in self.cache:
                expected = len(key[1])
            elif len(key[1]) > expected:
                break
        assert self.pool.reuse(number, session.ids) == expected
        session.computed = max(session.computed, expected)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0))
    def release(self, pick: int) -> None:
        number = list(self.live)[pick % len(self.live)]
        session = self.live.pop(number)
        self.pool.release(number)
        for key in reversed(self.published(session)):
            self.clock += 1
            if key not in self.in_use():
                self.cache[key] = self.clock

    @invariant()
    def sound(self) -> None:
        self.pool.check_invariants()
        assert self.pool.num_cached == len(self.cache)

    @invariant()
    def every_session_reads_its_own_tokens(self) -> None:
        for number, session in self.live.items():
            blocks = self.pool.blocks(number)
            for place in range(session.computed):
                content = self.memory[int(blocks[place // BLOCK]), place % BLOCK]
                assert content == tuple(session.ids[: place + 1])

    def teardown(self) -> None:
        for number in self.live:
            self.pool.release(number)
        self.pool.check_invariants()
        assert self.pool.num_free == self.NUM_BLOCKS


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
