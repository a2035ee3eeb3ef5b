"""The KV pool against a naive model that keeps every block's contents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider.codec.block_hashes import block_hashes
from services.inference.kv.events import BlockLedger, Removed, Stored
from services.inference.kv.pool import BlockCopy, KvPool

BLOCK = 4

PROMPTS = st.builds(
    lambda blocks, tail: [token for block in blocks for token in [block] * BLOCK] + tail,
    st.lists(st.integers(0, 1), max_size=4),
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
)
"""Few different blocks, so that sessions share, race and evict each other often."""

Prefix: TypeAlias = tuple[bytes, tuple[int, ...]]
"""A cached block: the salt, and all ids up to the block's end."""
Memory: TypeAlias = dict[tuple[int, int], object]
"""What an engine would have written, by block and slot: the tenant's salt, and all ids up to that
token."""


def name_of(prefix: Prefix) -> bytes:
    return list(block_hashes(prefix[1], BLOCK, prefix[0]))[-1]


def num_same(one: Sequence[int], other: Sequence[int]) -> int:
    """Leading ids that both have."""
    return next((n for n in range(len(other)) if one[n] != other[n]), len(other))


class Naive:
    """What a session should see: its ids, and how many of them are computed."""

    def __init__(self, ids: list[int], salt: bytes) -> None:
        self.ids = ids
        self.salt = salt
        self.computed = 0

    def prefixes(self, num_tokens: int) -> list[Prefix]:
        full = num_tokens // BLOCK * BLOCK
        return [(self.salt, tuple(self.ids[:n])) for n in range(BLOCK, full + 1, BLOCK)]


class PoolMachine(RuleBasedStateMachine):
    """Sessions compute, speculate, publish and go. `cache` follows the pool's own events, each
    of which has to be right when it comes."""

    NUM_BLOCKS = 9
    SCRATCH = 1
    MIN_ROWS = 2

    def __init__(self) -> None:
        super().__init__()
        self.pool = KvPool(
            self.NUM_BLOCKS, BLOCK, min_rows=self.MIN_ROWS, scratch_tokens=self.SCRATCH
        )
        self.pool.record()
        self.ledger = BlockLedger()
        self.memory: Memory = {}
        self.live: dict[int, Naive] = {}
        self.num_blocks: dict[int, int] = {}
        """Of each session's table."""
        self.cache: dict[bytes, Prefix] = {}
        self.next_session = 0

    def pick(self, number: int) -> int:
        return list(self.live)[number % len(self.live)]

    def in_use(self) -> set[Prefix]:
        return {key for one in self.live.values() for key in one.prefixes(one.computed)}

    def num_private(self) -> int:
        return sum(self.num_blocks[n] - one.computed // BLOCK for n, one in self.live.items())

    def num_free(self) -> int:
        num_idle = len(set(self.cache.values()) - self.in_use())
        return self.NUM_BLOCKS - len(self.cache) - self.num_private() + num_idle

    def settle(self, number: int) -> None:
        """Take the pool's events: nothing is evicted that is in use, or that others stand on, or
        while there is room."""
        self.num_blocks[number] = len(self.pool.blocks(number))
        events = self.pool.take_events()
        self.ledger.add(events)
        for event in events:
            for block in event.hashes:
                self.stored(block) if isinstance(event, Stored) else self.removed(block)
        if any(isinstance(event, Removed) for event in events):
            assert len(self.cache) + self.num_private() == self.NUM_BLOCKS

    def stored(self, block: bytes) -> None:
        assert block not in self.cache
        self.cache.update((block, key) for key in self.in_use() if name_of(key) == block)
        assert block in self.cache, "something was published that nobody computed"

    def removed(self, block: bytes) -> None:
        salt, ids = self.cache.pop(block)
        assert (salt, ids) not in self.in_use()
        for other_salt, other in self.cache.values():
            assert other_salt != salt or other[: len(ids)] != ids, "evicted from under another"

    def whole(self, session: Naive) -> int:
        """Tokens in full blocks that are the session's, or cached."""
        cached, known = set(self.cache.values()), session.computed // BLOCK * BLOCK
        for key in session.prefixes(len(session.ids) - self.MIN_ROWS):
            if len(key[1]) > known:
                if key not in cached:
                    break
                known = len(key[1])
        return known

    def beginning(self, session: Naive, begin: int) -> int:
        """Most tokens from `begin` on that a cached block begins with."""
        wanted = session.ids[begin : max(begin, len(session.ids) - self.MIN_ROWS)][:BLOCK]
        return max(
            (
                num_same(ids[begin:], wanted)
                for salt, ids in self.cache.values()
                if (salt, len(ids)) == (session.salt, begin + BLOCK)
                and list(ids[:begin]) == session.ids[:begin]
            ),
            default=0,
        )

    def take_over(self, number: int, answer: Callable[[], int]) -> None:
        """Let the pool answer, and check it against all that is cached."""
        session, num_blocks = self.live[number], self.num_blocks[number]
        begin = self.whole(session)
        session.computed = max(session.computed, begin)
        self.num_blocks[number] = max(num_blocks, begin // BLOCK)
        gained = begin + self.beginning(session, begin)
        has_room = num_blocks > begin // BLOCK or self.num_free() > 0
        if gained > session.computed and has_room:
            session.computed = gained
        assert answer() == session.computed
        self.settle(number)

    def run_copies(self, memory: Memory, copies: Sequence[BlockCopy]) -> None:
        for each in copies:
            assert each.source != each.target
            for place in range(BLOCK):
                memory[each.target, place] = memory[each.source, place]

    def run(self, number: int, past: int, tokens: list[int], history: list[int]) -> None:
        """An engine call: the copies, the tokens, and garbage up to the end of a block."""
        self.run_copies(self.memory, self.pool.take_copies())
        blocks = self.pool.blocks(number)
        for place in range(past, past + len(tokens)):
            content = (self.live[number].salt, *history[:past], *tokens[: place - past + 1])
            self.memory[int(blocks[place // BLOCK]), place % BLOCK] = content
        end = past + len(tokens)
        for place in range(end, -(-(end + self.SCRATCH) // BLOCK) * BLOCK):
            self.memory[int(blocks[place // BLOCK]), place % BLOCK] = "garbage"

    @rule(ids=PROMPTS, salt=st.sampled_from([b"", b"", b"", b"x"]))
    def open(self, ids: list[int], salt: bytes) -> None:
        session = Naive(ids, salt)
        begin = self.whole(session)
        assert self.pool.match(ids, salt) == begin + self.beginning(session, begin)
        number = self.next_session = self.next_session + 1
        self.live[number], self.num_blocks[number] = session, 0
        self.take_over(number, lambda: self.pool.open(number, ids, salt))

    @precondition(lambda self: self.live)
    @rule(
        pick=st.integers(0),
        count=st.sampled_from([1, 3, 8, 20]),
        drafts=st.lists(st.integers(2, 3), max_size=6),
    )
    def compute(self, pick: int, count: int, drafts: list[int]) -> None:
        """A chunk of the session's tokens, with wrong drafts behind it that are cut again."""
        number = self.pick(pick)
        session = self.live[number]
        tokens = session.ids[session.computed : session.computed + count]
        end = session.computed + len(tokens)
        drafts = drafts if end == len(session.ids) else []
        needed = self.pool.blocks_for(end + len(drafts)) - self.num_blocks[number]
        assert self.pool.num_missing(number, end + len(drafts)) == max(0, needed)
        if not tokens:
            return
        grown = self.pool.grow(number, end + len(drafts))
        assert grown == (needed <= self.num_free())
        if not grown:
            return
        self.settle(number)
        self.run(number, session.computed, tokens + drafts, session.ids)
        self.pool.commit(number, session.ids, end)
        session.computed = end
        self.pool.truncate(number, end)
        self.settle(number)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0), reply=st.lists(st.integers(0, 1), min_size=1, max_size=4))
    def extend(self, pick: int, reply: list[int]) -> None:
        session = self.live[self.pick(pick)]
        session.ids = session.ids + reply

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0))
    def reuse(self, pick: int) -> None:
        number = self.pick(pick)
        session = self.live[number]
        computed = session.computed
        self.take_over(number, lambda: self.pool.reuse(number, session.ids, computed))

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0))
    def release(self, pick: int) -> None:
        number = self.pick(pick)
        num_free, num_releasable = self.pool.num_free, self.pool.num_releasable([number])
        del self.live[number], self.num_blocks[number]
        self.pool.release(number)
        assert self.pool.num_free == num_free + num_releasable
        assert self.pool.take_events() == ()

    @precondition(lambda self: len(self.live) > 1)
    @rule(picks=st.sets(st.integers(0, 5), min_size=2))
    def release_some(self, picks: set[int]) -> None:
        numbers = sorted({self.pick(pick) for pick in picks})
        num_free, num_releasable = self.pool.num_free, self.pool.num_releasable(numbers)
        for number in numbers:
            del self.live[number], self.num_blocks[number]
            self.pool.release(number)
        assert self.pool.num_free <= num_free + num_releasable

    @invariant()
    def sound(self) -> None:
        self.pool.check_invariants()
        assert self.pool.num_cached == len(self.cache) == self.ledger.num_stored
        assert self.pool.num_free == self.num_free()

    @invariant()
    def tenants_share_no_block(self) -> None:
        owners: dict[int, bytes] = {}
        for number, session in self.live.items():
            for block in self.pool.blocks(number).tolist():
                assert owners.setdefault(block, session.salt) == session.salt

    @invariant()
    def every_session_reads_its_own_tokens(self) -> None:
        memory = dict(self.memory)
        self.run_copies(memory, self.pool._copies)
        for number, session in self.live.items():
            blocks = self.pool.blocks(number)
            for place in range(session.computed):
                content = memory[int(blocks[place // BLOCK]), place % BLOCK]
                assert content == (session.salt, *session.ids[: place + 1])

    def teardown(self) -> None:
        for number in self.live:
            self.pool.release(number)
        self.pool.check_invariants()
        assert self.pool.num_free == self.NUM_BLOCKS


PoolMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
