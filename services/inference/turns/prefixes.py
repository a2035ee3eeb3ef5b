"""What a turn engine has cached, by the names that routers use (pure).

Engines name blocks in ways of their own; routers know a block by a hash over its ids and those
before it (outrider.codec.block_hashes). An engine that does not tell what it caches is taken to
keep what it was given last, as far as its KV has room: a guess, by which routers only choose where
a session goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from outrider.codec.block_hashes import block_hash, block_hashes, root_hash
from outrider.engines.turn.base import BlocksRemoved, BlocksStored, PrefixEvent
from outrider.lru_map import LruMap
from services.inference.kv.events import BlockEvent, BlockRecorder

MAX_BLOCKS: Final = 1 << 16
"""Most blocks that are named: 16 bytes each, twice, and as much in every router."""
_GUESSED_BLOCKS: Final = 1024
"""Taken to be cached where the engine does not say how many it has."""


class CachedPrefixes:
    """Blocks that can be reused now."""

    def __init__(self, block_tokens: int, num_blocks: int = 0) -> None:
        """`num_blocks`: of the engine's KV; 0: unknown."""
        self._block_tokens = block_tokens
        self._recorder = BlockRecorder()
        size = min(num_blocks or _GUESSED_BLOCKS, MAX_BLOCKS)
        self._told: LruMap[bytes, bytes] = LruMap(MAX_BLOCKS, on_drop=self._recorder.removed)
        """Our names by the engine's."""
        self._guessed: LruMap[bytes, bytes] = LruMap(size, on_drop=self._recorder.removed)

    def take(self) -> tuple[BlockEvent, ...]:
        """Changes since the last take."""
        return self._recorder.take()

    def told(self, event: PrefixEvent) -> None:
        """The engine's own word. Blocks behind one that is not known are left out: nobody could
        find them."""
        if isinstance(event, BlocksStored):
            self._stored(event)
        elif isinstance(event, BlocksRemoved):
            for name in event.names:
                self._removed(name)
        else:
            for name, _ in list(self._told.items()):
                self._removed(name)

    def given(self, ids: Sequence[int], salt: bytes) -> None:
        """The engine computes these ids, and is taken to keep their blocks."""
        names = list(block_hashes(ids, self._block_tokens, salt))
        parent = root_hash(salt)
        for name in names:
            if name not in self._guessed:
                self._guessed.put(name, name)
                self._recorder.stored(parent, name)
            parent = name
        for name in reversed(names):
            self._guessed.get(name)  # the first block of a prompt is the last to go

    def _stored(self, event: BlocksStored) -> None:
        parent = root_hash(event.salt) if not event.parent else self._told.peek(event.parent)
        size = self._block_tokens
        for index, name in enumerate(event.names):
            if parent is None:
                return
            ours = block_hash(parent, event.ids[index * size : (index + 1) * size])
            if name not in self._told:
                self._told.put(name, ours)
                self._recorder.stored(parent, ours)
            parent = ours

    def _removed(self, name: bytes) -> None:
        if (ours := self._told.pop(name)) is not None:
            self._recorder.removed(ours)
