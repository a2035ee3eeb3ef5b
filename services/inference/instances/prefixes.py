"""Which engine instance has which block in its prefix cache (pure).

Every instance reports what it stores and removes. Routers see one cache: a block is stored when the
first instance has it, and removed when the last one has evicted it. An instance stores a parent
before its children and removes it after them, so both are true of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.codec.block_hashes import block_hashes
from services.inference.kv.events import BlockEvent, BlockRecorder, Stored


class InstancePrefixes:
    """The cached blocks of all instances, and which instances have each."""

    def __init__(self, num_instances: int, block_tokens: int) -> None:
        self._num_instances = num_instances
        self._block_tokens = block_tokens
        self._instances: dict[bytes, int] = {}
        """By block hash; bit i: instance i has the block."""

    @property
    def num_stored(self) -> int:
        """Blocks that at least one instance has."""
        return len(self._instances)

    def take(self, instance: int, events: Sequence[BlockEvent]) -> tuple[BlockEvent, ...]:
        """An instance's events; returns those of all instances together."""
        bit = 1 << instance
        recorder = BlockRecorder()
        for event in events:
            if isinstance(event, Stored):
                self._store(bit, event, recorder)
            else:
                self._remove(bit, event.hashes, recorder)
        return recorder.take()

    def cached(self, ids: Sequence[int], salt: bytes) -> list[int]:
        """Per instance, how many leading tokens of `ids` it has cached under this salt, in full
        blocks. Hashes only as many blocks as some instance has."""
        found = [0] * self._num_instances
        instances = (1 << self._num_instances) - 1
        for index, block in enumerate(block_hashes(ids, self._block_tokens, salt), 1):
            instances &= self._instances.get(block, 0)
            if not instances:
                break
            for instance in range(self._num_instances):
                if instances >> instance & 1:
                    found[instance] = index * self._block_tokens
        return found

    def _store(self, bit: int, event: Stored, recorder: BlockRecorder) -> None:
        parent = event.parent
        for block in event.hashes:
            held = self._instances.get(block, 0)
            if not held:
                recorder.stored(parent, block)
            self._instances[block] = held | bit
            parent = block

    def _remove(self, bit: int, hashes: Sequence[bytes], recorder: BlockRecorder) -> None:
        for block in hashes:
            left = self._instances[block] & ~bit
            if left:
                self._instances[block] = left
            else:
                del self._instances[block]
                recorder.removed(block)
