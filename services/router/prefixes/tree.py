"""The prefix tree: every block that some replica holds, and who holds it (pure).

A block's name is a hash of all ids up to its end (outrider.codec.block_hashes), so one dictionary
finds any node of the tree, whatever its depth; what is kept besides is each node's parent, for the
order in which nodes may go. Nothing here is an object per node: names, parents and owners are in
flat arrays, which a garbage collection does not walk through. About 200 bytes per node.

The bound is in nodes. A full tree forgets the leaf used least recently; who held it is then taken
not to hold it, which costs a prediction its accuracy and nothing else.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from services.router.prefixes.leaves import LeafQueue
from services.router.prefixes.owners import NOBODY, OwnerSets

_NAME_BYTES = 16
_NONE = -1
_FREE = -2


class PrefixTree:
    """Blocks by hash. Owners are small numbers of the caller's choice, reused after `forget`."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self.sets = OwnerSets()
        self.slots: dict[bytes, int] = {}
        """Where a block's row is. Read freely; changed here alone."""
        self.owners = array("i")
        """By slot, the number of its owners in `sets`. Read freely; changed here alone."""
        self._names = bytearray()
        self._parents = array("i")
        self._children = array("i")
        self._leaves = LeafQueue()
        self._free: list[int] = []
        self._hand = 0
        self._untidy = 0

    def __len__(self) -> int:
        return len(self.slots)

    def store(self, owner: int, parent: bytes, blocks: Sequence[bytes]) -> None:
        """An owner holds these blocks from now on, each behind the one before it, the first
        behind `parent`: a block, or the root of a cache salt, which is no node."""
        bit = 1 << owner
        above = self.slots.get(parent, _NONE)
        for block in blocks:
            slot = self.slots.get(block, _NONE)
            if slot == _NONE:
                slot = self._insert(block, above)
                if slot == _NONE:
                    return  # one path fills the whole tree
            self.owners[slot] = self.sets.added(self.owners[slot], bit)
            above = slot

    def remove(self, owner: int, blocks: Sequence[bytes]) -> None:
        """An owner does not hold these blocks any more. Unknown ones are ignored: they were
        forgotten for lack of room."""
        bit = 1 << owner
        for block in blocks:
            slot = self.slots.get(block, _NONE)
            if slot != _NONE:
                self.owners[slot] = self.sets.removed(self.owners[slot], bit)
                self._free_ownerless(slot)

    def forget(self, owner: int) -> None:
        """An owner holds nothing any more. Blocks that nobody holds go with `tidy`."""
        self.sets.drop(1 << owner)
        self._untidy = len(self._parents)

    def tidy(self, max_rows: int) -> None:
        """Free what nobody holds since `forget`, looking at so many rows at most."""
        count = min(max_rows, self._untidy)
        self._untidy -= count
        for _ in range(count):
            self._hand = (self._hand + 1) % len(self._parents)
            if self._parents[self._hand] != _FREE:
                self._free_ownerless(self._hand)

    def holders(self, block: bytes) -> int:
        """The mask of who holds a block."""
        slot = self.slots.get(block, _NONE)
        return self.sets.masks[self.owners[slot]] if slot != _NONE else 0

    def touch(self, block: bytes) -> None:
        """A prompt was found cached up to this block."""
        slot = self.slots.get(block, _NONE)
        if slot != _NONE:
            self._leaves.touch(slot)

    def num_bytes(self) -> int:
        """Memory of rows and names, without the dictionary that finds them."""
        rows = sum(row.itemsize * len(row) for row in (self.owners, self._parents, self._children))
        return rows + len(self._names) + self._leaves.num_bytes

    def check_invariants(self) -> None:
        """Raises AssertionError if rows, leaves and sets disagree, or the bound is broken."""
        self.sets.check_invariants()
        assert len(self.slots) <= self._max_blocks
        used = set(self.slots.values())
        assert len(used) == len(self.slots)
        assert used.isdisjoint(self._free) and len(used) + len(self._free) == len(self._parents)
        for block, slot in self.slots.items():
            assert self._name(slot) == block
            assert self._parents[slot] == _NONE or self._parents[slot] in used
        parents = [self._parents[slot] for slot in used]
        assert all(self._children[slot] == parents.count(slot) for slot in used)
        assert sorted(self._leaves) == sorted(s for s in used if not self._children[s])

    def _insert(self, block: bytes, parent: int) -> int:
        """A node of nobody's behind `parent`; -1 if there is room for none."""
        if parent != _NONE:
            self._children[parent] += 1
            if parent in self._leaves:
                self._leaves.remove(parent)
        if len(self.slots) >= self._max_blocks:
            if self._leaves.oldest == _NONE:
                self._lose_child(parent)
                return _NONE
            self._free_leaf(self._leaves.oldest)
        slot = self._take_slot(block, parent)
        self.slots[block] = slot
        self._leaves.push(slot)
        return slot

    def _take_slot(self, block: bytes, parent: int) -> int:
        if self._free:
            slot = self._free.pop()
            self._parents[slot], self.owners[slot] = parent, self.sets.enter()
            self._names[slot * _NAME_BYTES : (slot + 1) * _NAME_BYTES] = block
            return slot
        self._parents.append(parent)
        self._children.append(0)
        self.owners.append(self.sets.enter())
        self._names += block
        return len(self._parents) - 1

    def _free_ownerless(self, slot: int) -> None:
        """Free a leaf that nobody holds, and its ancestors as far as the same is true of them."""
        while slot != _NONE and not self._children[slot]:
            if self.sets.masks[self.owners[slot]]:
                return
            parent = self._parents[slot]
            self._free_leaf(slot)
            slot = parent

    def _free_leaf(self, slot: int) -> None:
        self._leaves.remove(slot)
        self.sets.leave(self.owners[slot])
        del self.slots[self._name(slot)]
        parent = self._parents[slot]
        self._parents[slot], self.owners[slot] = _FREE, NOBODY
        self._free.append(slot)
        if parent != _NONE:
            self._lose_child(parent)

    def _lose_child(self, slot: int) -> None:
        self._children[slot] -= 1
        if not self._children[slot]:
            self._leaves.push(slot)

    def _name(self, slot: int) -> bytes:
        return bytes(self._names[slot * _NAME_BYTES : (slot + 1) * _NAME_BYTES])
