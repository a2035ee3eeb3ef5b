"""Physical KV blocks and their reference counts."""

from __future__ import annotations


class BlockAllocator:
    """Blocks 0 .. num_blocks - 1. A block is free exactly while its reference count is 0.

    Lowest numbers first, last freed first reused, so that a small load touches little memory.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._ref_counts = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """A free block, with a reference count of 1. The caller checks num_free first."""
        block = self._free.pop()
        self._ref_counts[block] = 1
        return block

    def retain(self, block: int) -> None:
        """One more reference to a block that is not free."""
        if self._ref_counts[block] == 0:
            raise RuntimeError(f"KV block {block} is free and cannot be retained")
        self._ref_counts[block] += 1

    def release(self, block: int) -> int:
        """One reference fewer; returns how many are left, and frees the block at 0."""
        if self._ref_counts[block] == 0:
            raise RuntimeError(f"KV block {block} was released twice")
        self._ref_counts[block] -= 1
        if self._ref_counts[block] == 0:
            self._free.append(block)
        return self._ref_counts[block]

    def ref_count(self, block: int) -> int:
        return self._ref_counts[block]

    def check_invariants(self) -> None:
        """Raises AssertionError unless the free list is exactly the blocks without a reference."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is twice on the free list"
        unreferenced = {block for block, count in enumerate(self._ref_counts) if count == 0}
        assert free == unreferenced, f"the free list is wrong on {free ^ unreferenced}"
