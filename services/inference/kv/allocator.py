"""Physical KV blocks and how many hold each."""

from __future__ import annotations


class BlockAllocator:
    """Blocks 0 .. num_blocks - 1. A block is free exactly while nobody holds it.

    Lowest numbers first, last freed first reused, so that a small load touches little memory.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._holders = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """A free block with one holder. The caller checks num_free first."""
        block = self._free.pop()
        self._holders[block] = 1
        return block

    def retain(self, block: int) -> None:
        """One more holder of a held block."""
        if self._holders[block] == 0:
            raise RuntimeError(f"KV block {block} is free and cannot be retained")
        self._holders[block] += 1

    def release(self, block: int) -> int:
        """One holder fewer; returns how many are left, and frees the block at 0."""
        if self._holders[block] == 0:
            raise RuntimeError(f"KV block {block} was released twice")
        self._holders[block] -= 1
        if self._holders[block] == 0:
            self._free.append(block)
        return self._holders[block]

    def num_holders(self, block: int) -> int:
        return self._holders[block]

    def check_invariants(self) -> None:
        """Raises AssertionError unless the free list is exactly the blocks without a holder."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is twice on the free list"
        unheld = {block for block, count in enumerate(self._holders) if count == 0}
        assert free == unheld, f"free list and holders disagree on {free ^ unheld}"
