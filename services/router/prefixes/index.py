"""What replicas hold and are expected to hold, and how much of a prompt that is (pure).

Replicas tell what they hold, some milliseconds after they computed it. Until then a prompt that
was just sent to one is *expected* there: of many prompts with one beginning that come at once, the
second already knows where the first one went (Dynamo's router predicts likewise, with a time to
live; docs/guides/placement.md). Expectations are a map beside the tree and end after a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.router.prefixes.prompt import HashMemo, Prompt
from services.router.prefixes.recent import RecentMap
from services.router.prefixes.tree import PrefixTree

Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]

_FEW = 8
"""Bits of a mask that are found sooner one by one."""


class Step(NamedTuple):
    """Replicas that hold a prompt's first `num_blocks` blocks and no more."""

    num_blocks: int
    owners: int
    """Their mask."""


@dataclass(frozen=True, slots=True)
class PrefixLimits:
    """Bounds of an index."""

    max_blocks: int = 1 << 20
    """Blocks known at once; about 200 bytes each."""
    max_expected: int = 1 << 16
    """Blocks expected at once, twice over in the worst case."""
    max_expected_depth: int = 1024
    """Blocks of one prompt that are expected where it was sent."""
    expected_s: float = 5.0
    """An expectation holds for so long; for twice that at most where `tidy` is called often."""
    max_pieces: int = 4096
    """Pieces of 16 blocks whose hashes are remembered, twice over in the worst case."""


class PrefixIndex:
    """Owners are numbers from 0 on, small ones: a mask has a bit for each up to the largest."""

    def __init__(self, limits: PrefixLimits) -> None:
        self._limits = limits
        self._tree = PrefixTree(limits.max_blocks)
        self._expected: RecentMap[bytes, int] = RecentMap(limits.max_expected)
        self._rotated_at = float("-inf")
        self.memo = HashMemo(limits.max_pieces)

    @property
    def num_blocks(self) -> int:
        """Blocks known."""
        return len(self._tree)

    def prompt(self, ids: bytes, salt: bytes) -> Prompt:
        """A prompt to look up: ids as little-endian u32, the cache salt of its session."""
        return Prompt(ids, salt, self.memo)

    def store(self, owner: int, parent: bytes, blocks: Sequence[bytes]) -> None:
        """As PrefixTree.store."""
        self._tree.store(owner, parent, blocks)

    def remove(self, owner: int, blocks: Sequence[bytes]) -> None:
        """As PrefixTree.remove."""
        self._tree.remove(owner, blocks)

    def forget(self, owner: int) -> None:
        """What the owner holds is not known any more."""
        self._tree.forget(owner)

    def retire(self, owner: int) -> None:
        """The owner's number will be somebody else's."""
        self._tree.forget(owner)
        # Rare enough to give up what is expected of others too: it is a matter of seconds.
        self._expected.clear()

    def expect(self, owner: int, prompt: Prompt, block_tokens: int, now: float) -> None:
        """A prompt was sent to a replica, which will hold it soon."""
        self._age(now)
        bit, expected = 1 << owner, self._expected
        for block in prompt.chain(block_tokens).upto(self._limits.max_expected_depth):
            # Who is expected in the old generation alone is not kept longer by this one.
            expected.put(block, bit | expected.young.get(block, 0))

    def tidy(self, now: float, max_rows: int) -> None:
        """What passes with time alone: at most so many rows of the tree are looked at."""
        self._age(now)
        self._tree.tidy(max_rows)

    def match(self, prompt: Prompt, block_tokens: int, among: int) -> list[Step]:
        """How far the replicas of the mask `among`, all with blocks of this size, hold the prompt:
        each at most once, those that hold none of it not at all."""
        steps: list[Step] = []
        chain = prompt.chain(block_tokens)
        depth, holders = 0, among
        while holders and depth < chain.num_blocks:
            if depth == len(chain.known):
                chain.grow()
            depth = self._held_by_all(chain.known, depth, holders)
            if depth < len(chain.known):
                held = holders & self._holders(chain.known[depth])
                if depth:
                    steps.append(Step(depth, holders & ~held))
                holders = held
        if holders and depth:
            steps.append(Step(depth, holders))
        if depth:
            self._tree.touch(chain.known[depth - 1])
        return steps

    def _held_by_all(self, blocks: Sequence[bytes], first: int, holders: int) -> int:
        """Where the blocks from `first` on end that all of them hold. Who holds a block holds those
        before it, so that is found by halving."""
        if not holders & ~self._holders(blocks[-1]):
            return len(blocks)
        low, high = first, len(blocks) - 1
        while low < high:
            middle = (low + high) // 2
            if holders & ~self._holders(blocks[middle]):
                high = middle
            else:
                low = middle + 1
        return low

    def _holders(self, block: bytes) -> int:
        tree, expected = self._tree, self._expected
        slot = tree.slots.get(block, -1)
        told = tree.sets.masks[tree.owners[slot]] if slot >= 0 else 0
        return told | expected.young.get(block, 0) | expected.old.get(block, 0)

    def _age(self, now: float) -> None:
        if now - self._rotated_at >= self._limits.expected_s:
            self._rotated_at = now
            self._expected.rotate()

    def check_invariants(self) -> None:
        """Raises AssertionError if the tree is broken."""
        self._tree.check_invariants()


def tokens_by_owner(steps: Sequence[Step], block_tokens: int, num_owners: int) -> Counts:
    """[num_owners] how many leading tokens each owner holds."""
    found = np.zeros(num_owners, dtype=np.int64)
    for step in steps:
        owners: Bools | list[int] = (
            bits(step.owners) if step.owners.bit_count() <= _FEW else flags(step.owners, num_owners)
        )
        found[owners] = step.num_blocks * block_tokens
    return found


def bits(mask: int) -> list[int]:
    """The numbers of the bits that are set, largest first; `flags` is faster for many."""
    found = []
    while mask:
        found.append(mask.bit_length() - 1)
        mask ^= 1 << found[-1]
    return found


def flags(mask: int, count: int) -> Bools:
    """[count] the bits of a mask of at most `count` bits, bit 0 first."""
    raw = np.frombuffer(mask.to_bytes(-(-count // 8), "little"), dtype=np.uint8)
    return np.unpackbits(raw, count=count, bitorder="little").view(np.bool_)


def mask_of(chosen: Bools) -> int:
    """The reverse of `flags`."""
    return int.from_bytes(np.packbits(chosen, bitorder="little").tobytes(), "little")
