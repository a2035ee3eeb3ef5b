"""Every block that some replica has cached, and which replicas have it, within a bound (pure).

OwnerTree   blocks by hash
OwnerSets   the sets of replicas that own blocks, each stored once
LruList     the tree's leaves, least recently used first
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from outrider.codec.block_hashes import HASH_BYTES

EMPTY_SET = 0
"""Number of the empty set of owners."""

_NONE = -1
_FREE = -2

_ABSENT = -1
_SENTINEL = 0


class OwnerTree:
    """Cached blocks by hash, and their owners: small numbers of the caller's choice, which may be
    used again after `forget`.

    A block's hash covers all ids up to its end (outrider.codec.block_hashes), so one dictionary
    finds any node of the prefix tree; each node's parent is kept for eviction only. Hashes, parents
    and owners are in flat arrays, which a garbage collection does not walk: about 200 bytes a node.

    A full tree evicts the leaf used least recently. Its owners are then taken not to have it, which
    makes predictions less accurate and has no other effect.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self.sets = OwnerSets()
        self.slots: dict[bytes, int] = {}
        """Slot of each block; read-only for others."""
        self.owners = array("i")
        """By slot, the number of its owners' set; read-only for others."""
        self._hashes = bytearray()
        self._parents = array("i")
        self._children = array("i")
        self._leaves = LruList()
        self._free: list[int] = []
        self._sweep_slot = 0
        self._num_unswept = 0
        """Slots still to be looked at by `sweep` since the last `forget`."""

    def __len__(self) -> int:
        return len(self.slots)

    def store(self, owner: int, parent: bytes, blocks: Sequence[bytes]) -> None:
        """An owner has these blocks from now on, each following the one before it, the first
        following `parent`: a block, or the root of a cache salt, which is no node."""
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
        """An owner does not have these blocks any more. Unknown ones are ignored: they were
        evicted."""
        bit = 1 << owner
        for block in blocks:
            slot = self.slots.get(block, _NONE)
            if slot != _NONE:
                self.owners[slot] = self.sets.removed(self.owners[slot], bit)
                self._free_ownerless(slot)

    def forget(self, owner: int) -> None:
        """An owner has no blocks any more. `sweep` frees those without owners."""
        self.sets.drop(1 << owner)
        self._num_unswept = len(self._parents)

    def sweep(self, max_slots: int) -> None:
        """Free blocks left without owners by `forget`, looking at `max_slots` slots at most."""
        count = min(max_slots, self._num_unswept)
        self._num_unswept -= count
        for _ in range(count):
            self._sweep_slot = (self._sweep_slot + 1) % len(self._parents)
            if self._parents[self._sweep_slot] != _FREE:
                self._free_ownerless(self._sweep_slot)

    def holders(self, block: bytes) -> int:
        """Mask of a block's owners."""
        slot = self.slots.get(block, _NONE)
        return self.sets.masks[self.owners[slot]] if slot != _NONE else 0

    def touch(self, block: bytes) -> None:
        """A prompt was found cached up to this block."""
        slot = self.slots.get(block, _NONE)
        if slot != _NONE:
            self._leaves.touch(slot)

    def num_bytes(self) -> int:
        """Memory of the arrays, without the dictionary."""
        rows = sum(row.itemsize * len(row) for row in (self.owners, self._parents, self._children))
        return rows + len(self._hashes) + self._leaves.num_bytes

    def check_invariants(self) -> None:
        """Raises AssertionError if slots, leaves and sets disagree, or the bound is exceeded."""
        self.sets.check_invariants()
        assert len(self.slots) <= self._max_blocks
        used = set(self.slots.values())
        assert len(used) == len(self.slots)
        assert used.isdisjoint(self._free) and len(used) + len(self._free) == len(self._parents)
        for block, slot in self.slots.items():
            assert self._hash(slot) == block
            assert self._parents[slot] == _NONE or self._parents[slot] in used
        parents = [self._parents[slot] for slot in used]
        assert all(self._children[slot] == parents.count(slot) for slot in used)
        assert sorted(self._leaves) == sorted(s for s in used if not self._children[s])

    def _insert(self, block: bytes, parent: int) -> int:
        """Add a node without owners as a child of `parent`; returns its slot, or -1 if the tree is
        full."""
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
            self._parents[slot] = parent
            self.owners[slot] = self.sets.enter()
            self._hashes[slot * HASH_BYTES : (slot + 1) * HASH_BYTES] = block
            return slot
        self._parents.append(parent)
        self._children.append(0)
        self.owners.append(self.sets.enter())
        self._hashes += block
        return len(self._parents) - 1

    def _free_ownerless(self, slot: int) -> None:
        """Free a leaf without owners, and its ancestors as far as they become such leaves."""
        while slot != _NONE and not self._children[slot]:
            if self.sets.masks[self.owners[slot]]:
                return
            parent = self._parents[slot]
            self._free_leaf(slot)
            slot = parent

    def _free_leaf(self, slot: int) -> None:
        self._leaves.remove(slot)
        self.sets.leave(self.owners[slot])
        del self.slots[self._hash(slot)]
        parent = self._parents[slot]
        self._parents[slot] = _FREE
        self.owners[slot] = EMPTY_SET
        self._free.append(slot)
        if parent != _NONE:
            self._lose_child(parent)

    def _lose_child(self, slot: int) -> None:
        self._children[slot] -= 1
        if not self._children[slot]:
            self._leaves.push(slot)

    def _hash(self, slot: int) -> bytes:
        return bytes(self._hashes[slot * HASH_BYTES : (slot + 1) * HASH_BYTES])


class OwnerSets:
    """Numbered sets of owners, as bit masks with use counts; a set without uses is forgotten.

    Most blocks of a prompt are held by the same replicas, so a block refers to a set by number.
    Taking a replica out of all blocks then changes the sets, not the blocks. After that two numbers
    may stand for equal sets.
    """

    def __init__(self) -> None:
        self.masks: list[int] = [0]
        """By number; read-only for others."""
        self._numbers: dict[int, int] = {0: EMPTY_SET}
        self._uses = array("q", [0])
        self._free: list[int] = []

    def __len__(self) -> int:
        """Sets in use, and the empty one."""
        return len(self.masks) - len(self._free)

    def added(self, number: int, bit: int) -> int:
        """Turn one use of a set into a use of that set with `bit`; returns its number."""
        mask = self.masks[number]
        return number if mask & bit else self._moved(number, mask | bit)

    def removed(self, number: int, bit: int) -> int:
        """Turn one use of a set into a use of that set without `bit`; returns its number."""
        mask = self.masks[number]
        return self._moved(number, mask & ~bit) if mask & bit else number

    def enter(self) -> int:
        """One more use of the empty set."""
        self._uses[EMPTY_SET] += 1
        return EMPTY_SET

    def leave(self, number: int) -> None:
        """One use of a set less."""
        self._uses[number] -= 1
        if self._uses[number] == 0 and number != EMPTY_SET:
            if self._numbers.get(self.masks[number]) == number:
                del self._numbers[self.masks[number]]
            self.masks[number] = 0
            self._free.append(number)

    def drop(self, bit: int) -> None:
        """Take a replica out of every set."""
        for number, mask in enumerate(self.masks):
            if mask & bit:
                if self._numbers.get(mask) == number:
                    del self._numbers[mask]
                self.masks[number] = mask & ~bit
                self._numbers.setdefault(mask & ~bit, number)

    def check_invariants(self) -> None:
        """Raises AssertionError if numbers and masks disagree."""
        for mask, number in self._numbers.items():
            assert self.masks[number] == mask
            assert number == EMPTY_SET or self._uses[number] > 0, "a set without uses has a number"
        assert all(self._uses[number] == 0 for number in self._free)
        assert len(set(self._free)) == len(self._free)

    def _moved(self, number: int, mask: int) -> int:
        to = self._numbers.get(mask)
        if to is None:
            to = self._make(mask)
        self._uses[to] += 1
        self.leave(number)
        return to

    def _make(self, mask: int) -> int:
        if self._free:
            number = self._free.pop()
            self.masks[number] = mask
        else:
            number = len(self.masks)
            self.masks.append(mask)
            self._uses.append(0)
        self._numbers[mask] = number
        return number


class LruList:
    """Slots in the order of their last use: a doubly linked list in two arrays, eight bytes for
    each slot ever seen."""

    def __init__(self) -> None:
        # Place 0 is the sentinel between the newest and the oldest; slot n has place n + 1.
        self._older = array("i", [_SENTINEL])
        self._newer = array("i", [_SENTINEL])

    def __contains__(self, slot: int) -> bool:
        return slot + 1 < len(self._older) and self._older[slot + 1] != _ABSENT

    def __iter__(self) -> Iterator[int]:
        """Oldest first."""
        place = self._newer[_SENTINEL]
        while place != _SENTINEL:
            yield place - 1
            place = self._newer[place]

    @property
    def num_bytes(self) -> int:
        """Memory of the two arrays."""
        return 2 * self._older.itemsize * len(self._older)

    @property
    def oldest(self) -> int:
        """The least recently used slot; -1 if the list is empty."""
        return self._newer[_SENTINEL] - 1

    def push(self, slot: int) -> None:
        """Add a slot that is not in the list as the newest."""
        place = slot + 1
        while len(self._older) <= place:
            self._older.append(_ABSENT)
            self._newer.append(_ABSENT)
        last = self._older[_SENTINEL]
        self._older[place], self._newer[place] = last, _SENTINEL
        self._newer[last] = self._older[_SENTINEL] = place

    def remove(self, slot: int) -> None:
        """Remove a slot that is in the list."""
        place = slot + 1
        older, newer = self._older[place], self._newer[place]
        self._newer[older], self._older[newer] = newer, older
        self._older[place] = self._newer[place] = _ABSENT

    def touch(self, slot: int) -> None:
        """Make a slot the newest; nothing happens if it is not in the list."""
        if slot in self:
            self.remove(slot)
            self.push(slot)
