"""How much of a prompt each replica has cached, or is expected to have (pure).

Replicas report cached blocks some milliseconds after computing them. Until then a prompt that was
just sent to a replica is *expected* there, so that many prompts with one beginning that come at
once go to the same replica (Dynamo's router predicts likewise, with a time to live;
docs/guides/placement.md). Expectations are a map beside the tree and end after `expected_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from outrider.bounds import PositiveFloat, PositiveInt
from services.router.prefix_index.owner_tree import OwnerTree
from services.router.prefix_index.prompt import HashedPrompt, HashMemo
from services.router.prefix_index.recent_map import RecentMap

Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]

_FEW = 8
"""Most set bits of a mask for which finding them one by one is faster."""


class PrefixMatch(NamedTuple):
    """Replicas that have exactly the first `num_blocks` blocks of a prompt."""

    num_blocks: int
    owners: int
    """Mask of the replicas."""


@dataclass(frozen=True, slots=True)
class PrefixIndexLimits:
    """Bounds of the prefix index (`[router.prefix_index]`)."""

    max_blocks: PositiveInt = 1 << 20
    """Cached blocks known at once, of all replicas; about 250 bytes each."""
    max_expected: PositiveInt = 1 << 16
    """Blocks expected at once, twice over in the worst case."""
    max_expected_depth: PositiveInt = 1024
    """Leading blocks of one prompt that are expected where it was sent."""
    expected_s: PositiveFloat = 5.0
    """A prompt is expected in the cache of the replica it was sent to for so long; up to twice as
    long, as it is checked in steps of this time."""
    max_pieces: PositiveInt = 4096
    """Pieces of 16 blocks whose hashes are kept; twice as many in the worst case."""


class PrefixIndex:
    """Owners are small numbers from 0 on: masks have a bit for each up to the largest."""

    def __init__(self, limits: PrefixIndexLimits) -> None:
        self._limits = limits
        self._tree = OwnerTree(limits.max_blocks)
        self._expected: RecentMap[bytes, int] = RecentMap(limits.max_expected)
        self._rotated_at = float("-inf")
        self.memo = HashMemo(limits.max_pieces)

    @property
    def num_blocks(self) -> int:
        """Cached blocks known."""
        return len(self._tree)

    def prompt(self, ids: bytes, salt: bytes) -> HashedPrompt:
        """A prompt to look up: ids as little-endian u32, the cache salt of its session."""
        return HashedPrompt(ids, salt, self.memo)

    def store(self, owner: int, parent: bytes, blocks: Sequence[bytes]) -> None:
        """See OwnerTree.store."""
        self._tree.store(owner, parent, blocks)

    def remove(self, owner: int, blocks: Sequence[bytes]) -> None:
        """See OwnerTree.remove."""
        self._tree.remove(owner, blocks)

    def forget(self, owner: int) -> None:
        """Forget the owner's cached blocks."""
        self._tree.forget(owner)

    def retire(self, owner: int) -> None:
        """The replica is gone, or serves another model; its number may be used again."""
        self._tree.forget(owner)
        # Rare enough to drop the expectations of other replicas too, which last for seconds.
        self._expected.clear()

    def expect(self, owner: int, prompt: HashedPrompt, block_tokens: int, now: float) -> None:
        """A prompt was sent to a replica, which will have it cached soon."""
        self._age(now)
        bit = 1 << owner
        expected = self._expected
        for block in prompt.chain(block_tokens).upto(self._limits.max_expected_depth):
            # Owners of the old generation are not made young by this one.
            expected.put(block, bit | expected.young.get(block, 0))

    def sweep(self, now: float, max_slots: int) -> None:
        """End old expectations, and free blocks without owners, looking at `max_slots` slots of the
        tree at most."""
        self._age(now)
        self._tree.sweep(max_slots)

    def match(self, prompt: HashedPrompt, block_tokens: int, among: int) -> list[PrefixMatch]:
        """How many leading blocks of the prompt the replicas of the mask `among` have, all with
        blocks of this size: each replica in one match at most, those with none in no match."""
        matches: list[PrefixMatch] = []
        chain = prompt.chain(block_tokens)
        blocks = chain.known
        num_blocks = chain.num_blocks
        holders_of = self._lookup()
        depth = 0
        holders = among
        while holders and depth < num_blocks:
            if depth == len(blocks):
                chain.grow()
            held = holders & holders_of(blocks[-1])
            if held == holders:
                depth = len(blocks)
                continue
            # The number of leading blocks that all of them have. A replica that has a block has
            # those before it, so a binary search finds it.
            high = len(blocks) - 1
            while depth < high:
                middle = (depth + high) // 2
                found = holders & holders_of(blocks[middle])
                if found == holders:
                    depth = middle + 1
                else:
                    high, held = middle, found
            if depth:
                matches.append(PrefixMatch(depth, holders & ~held))
            holders = held
        if holders and depth:
            matches.append(PrefixMatch(depth, holders))
        if depth:
            self._tree.touch(blocks[depth - 1])
        return matches

    def _lookup(self) -> Callable[[bytes], int]:
        """A function that gives the mask of the replicas that have a block, or are expected to have
        it; good until the index is changed."""
        slot_of = self._tree.slots.get
        owners, masks = self._tree.owners, self._tree.sets.masks
        young, old = self._expected.young, self._expected.old
        if not young and not old:

            def reported(block: bytes) -> int:
                slot = slot_of(block)
                return 0 if slot is None else masks[owners[slot]]

            return reported
        young_of, old_of = young.get, old.get

        def known(block: bytes) -> int:
            slot = slot_of(block)
            expected = young_of(block, 0) | old_of(block, 0)
            return expected if slot is None else expected | masks[owners[slot]]

        return known

    def _age(self, now: float) -> None:
        if now - self._rotated_at >= self._limits.expected_s:
            self._rotated_at = now
            self._expected.rotate()

    def check_invariants(self) -> None:
        """Raises AssertionError if the tree is broken."""
        self._tree.check_invariants()


def tokens_by_owner(matches: Sequence[PrefixMatch], block_tokens: int, num_owners: int) -> Counts:
    """[num_owners] leading tokens that each owner has."""
    found = np.zeros(num_owners, dtype=np.int64)
    for num_blocks, owners in matches:
        num_tokens = num_blocks * block_tokens
        if owners.bit_count() <= _FEW:
            for owner in bits(owners):
                found[owner] = num_tokens
        else:
            found[flags(owners, num_owners)] = num_tokens
    return found


def bits(mask: int) -> list[int]:
    """Numbers of the set bits, largest first; `flags` is faster for many."""
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
