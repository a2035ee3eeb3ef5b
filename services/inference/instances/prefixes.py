"""Which instance holds which block of the prefix cache (pure).

Every instance tells what it stores and removes. Together they are one cache to whoever watches: a
block is stored when the first instance has it, and removed when the last one has lost it. An
instance stores a parent before its children and removes it after them, so both hold of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.codec.block_hashes import block_hashes
from services.inference.kv.events import BlockEvent, BlockRecorder, Stored


class Prefixes:
    """The blocks of all instances, each with the set of its holders."""

    def __init__(self, num_instances: int, block_tokens: int) -> None:
        self._num_instances = num_instances
        self._block_tokens = block_tokens
        self._holders: dict[bytes, int] = {}
        """Bit i: instance i holds the block."""

    @property
    def num_stored(self) -> int:
        """Blocks that at least one instance holds."""
        return len(self._holders)

    def take(self, instance: int, events: Sequence[BlockEvent]) -> tuple[BlockEvent, ...]:
        """An instance's news; returns what is new of all instances together."""
        bit, news = 1 << instance, BlockRecorder()
        for event in events:
            if isinstance(event, Stored):
                self._store(bit, event, news)
            else:
                self._remove(bit, event.hashes, news)
        return news.take()

    def cached(self, ids: Sequence[int], salt: bytes) -> list[int]:
        """Per instance, how many leading tokens of `ids` it holds under this salt in full
        blocks. Hashes no further than somebody's knowledge goes."""
        found = [0] * self._num_instances
        holders = (1 << self._num_instances) - 1
        for index, block in enumerate(block_hashes(ids, self._block_tokens, salt), 1):
            holders &= self._holders.get(block, 0)
            if not holders:
                break
            for instance in range(self._num_instances):
                if holders >> instance & 1:
                    found[instance] = index * self._block_tokens
        return found

    def _store(self, bit: int, event: Stored, news: BlockRecorder) -> None:
        parent = event.parent
        for block in event.hashes:
            held = self._holders.get(block, 0)
            if not held:
                news.stored(parent, block)
            self._holders[block] = held | bit
            parent = block

    def _remove(self, bit: int, hashes: Sequence[bytes], news: BlockRecorder) -> None:
        for block in hashes:
            left = self._holders[block] & ~bit
            if left:
                self._holders[block] = left
            else:
                del self._holders[block]
                news.removed(block)
