"""The prefix index against a naive model that keeps every owner's prefixes as they are."""

from __future__ import annotations

from typing import TypeAlias

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider.codec.block_hashes import root_hash
from services.router.prefix_index.index import PrefixIndex, PrefixIndexLimits, tokens_by_owner
from tests.router.prefix_index.prompts import IDS, SALTS, hashes, packed

NUM_OWNERS = 9
OWNERS = st.integers(0, NUM_OWNERS - 1)
EXPECTED_S = 5.0

Prefix: TypeAlias = tuple[bytes, tuple[int, ...]]
"""A block of one token: the salt, and all ids up to it."""


def prefixes(ids: list[int], salt: bytes) -> list[Prefix]:
    return [(salt, tuple(ids[:end])) for end in range(1, len(ids) + 1)]


def name(prefix: Prefix) -> bytes:
    return hashes(prefix[1], prefix[0])[-1]


class IndexMachine(RuleBasedStateMachine):
    """Honest replicas: a parent is stored before its children and removed after them."""

    MAX_BLOCKS = 10_000

    def __init__(self) -> None:
        super().__init__()
        limits = PrefixIndexLimits(
            max_blocks=self.MAX_BLOCKS, expected_s=EXPECTED_S, max_expected=10_000, max_pieces=3
        )
        self.index = PrefixIndex(limits)
        self.held: list[set[Prefix]] = [set() for _ in range(NUM_OWNERS)]
        self.expected: list[dict[Prefix, float]] = [{} for _ in range(NUM_OWNERS)]
        self.now = 100.0

    @rule(owner=OWNERS, ids=IDS, salt=SALTS, again=st.booleans())
    def store(self, owner: int, ids: list[int], salt: bytes, again: bool) -> None:
        """A replica computed a prompt; it tells of what is new, or of all of it in a snapshot."""
        path = prefixes(ids, salt)
        new = path if again else [prefix for prefix in path if prefix not in self.held[owner]]
        if new:
            above = path[: len(path) - len(new)]
            parent = name(above[-1]) if above else root_hash(salt)
            self.index.store(owner, parent, [name(prefix) for prefix in new])
            self.held[owner].update(new)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data(), count=st.integers(1, 20))
    def remove(self, data: st.DataObject, count: int) -> None:
        """A replica evicts from the leaves up."""
        owner = data.draw(st.sampled_from([n for n, held in enumerate(self.held) if held]))
        held, gone = self.held[owner], []
        for _ in range(min(count, len(held))):
            longest = max(held, key=lambda prefix: (len(prefix[1]), prefix))
            held.discard(longest)
            gone.append(name(longest))
        self.index.remove(owner, gone)

    @rule(owner=OWNERS)
    def forget(self, owner: int) -> None:
        self.index.forget(owner)
        self.held[owner].clear()

    @rule(owner=OWNERS)
    def retire(self, owner: int) -> None:
        self.index.retire(owner)
        self.held[owner].clear()
        self.expected = [{} for _ in range(NUM_OWNERS)]

    @rule(owner=OWNERS, ids=IDS, salt=SALTS)
    def expect(self, owner: int, ids: list[int], salt: bytes) -> None:
        self.index.expect(owner, self.index.prompt(packed(ids), salt), 1, self.now)
        for prefix in prefixes(ids, salt):
            self.expected[owner][prefix] = self.now

    @rule(seconds=st.floats(0.1, 6.0), rows=st.integers(0, 100))
    def pass_time(self, seconds: float, rows: int) -> None:
        self.now += seconds
        self.index.sweep(self.now, rows)

    @rule(ids=IDS, salt=SALTS, among=st.integers(0, (1 << NUM_OWNERS) - 1))
    def match(self, ids: list[int], salt: bytes, among: int) -> None:
        steps = self.index.match(self.index.prompt(packed(ids), salt), 1, among)
        found = tokens_by_owner(steps, 1, NUM_OWNERS)
        assert sum(step.owners.bit_count() for step in steps) == (found > 0).sum()
        for owner in range(NUM_OWNERS):
            asked = among >> owner & 1
            # Three times, not twice: `tidy` comes after steps longer than that.
            most = self.depth(owner, ids, salt, 3 * EXPECTED_S) if asked else 0
            least = self.depth(owner, ids, salt, EXPECTED_S) if asked else 0
            assert self.at_least(least) <= found[owner] <= most

    def depth(self, owner: int, ids: list[int], salt: bytes, expected_s: float) -> int:
        """Leading tokens that the owner has, or is expected to have since `expected_s` at most."""
        since = self.now - expected_s
        return next(
            (
                depth
                for depth, prefix in enumerate(prefixes(ids, salt))
                if prefix not in self.held[owner] and self.expected[owner].get(prefix, 0.0) <= since
            ),
            len(ids),
        )

    def at_least(self, depth: int) -> int:
        """What has to be found of so many tokens: all, where there is room for all."""
        return depth

    @invariant()
    def is_whole(self) -> None:
        self.index.check_invariants()

    def teardown(self) -> None:
        """Without owners nothing is kept."""
        for owner in range(NUM_OWNERS):
            self.index.forget(owner)
        self.index.sweep(self.now, 10 * self.MAX_BLOCKS)
        assert self.index.num_blocks == 0


class SmallIndexMachine(IndexMachine):
    """Too little room: what is found is still true, only not all of it."""

    MAX_BLOCKS = 12

    def at_least(self, depth: int) -> int:
        return 0


TestIndex = IndexMachine.TestCase
TestSmallIndex = SmallIndexMachine.TestCase
TestIndex.settings = TestSmallIndex.settings = settings(max_examples=60, stateful_step_count=30)
