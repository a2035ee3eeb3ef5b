"""One replica's KV events, applied to the prefix index (pure).

A replica numbers its events. If one is missing, or the log is a new one because the replica was
restarted, the index may be wrong about its blocks: they are dropped and a snapshot is requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from outrider.codec.block_hashes import HASH_BYTES
from outrider.errors import MalformedFrameError
from services.router.prefix_index.index import PrefixIndex


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Event: these blocks are cached from now on, each following the one before it."""

    parent: bytes
    """Hash of the block, or root, that the first one follows."""
    blocks: Sequence[bytes]
    num_tokens: int
    """Tokens in all of them; the last block may not be full."""


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Event: these blocks are no longer cached."""

    blocks: Sequence[bytes]


KvEvent: TypeAlias = BlocksStored | BlocksRemoved


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """A part of a snapshot of all cached blocks."""

    chains: Sequence[BlocksStored]
    is_first: bool
    is_last: bool


class KvEventFollower:
    """Applies the events of one replica with a certain block size, in their order."""

    def __init__(self, index: PrefixIndex, owner: int, block_tokens: int) -> None:
        self._index = index
        self._owner = owner
        self._block_tokens = block_tokens
        self.log = 0
        """Id of the log that was followed last; 0: a snapshot is needed."""
        self.next_sequence = 0
        """Number of the next event."""
        self._in_snapshot = False

    def apply(self, log: int, sequence: int, events: Sequence[KvEvent]) -> bool:
        """Apply events of which the first has number `sequence`. Returns False if earlier events
        are missing; then ask again from `log` and `next_sequence`, which have become 0.

        Raises MalformedFrameError for events that no replica sends.
        """
        if log != self.log or sequence != self.next_sequence or self._in_snapshot:
            self.reset()
            return False
        for event in events:
            if isinstance(event, BlocksStored):
                self._store(event)
            else:
                self._check(event.blocks)
                self._index.remove(self._owner, event.blocks)
        self.next_sequence += len(events)
        return True

    def apply_snapshot(self, log: int, next_sequence: int, part: SnapshotPart) -> bool:
        """Apply a part of a snapshot, after which events continue with `next_sequence`. False if a
        part before it is missing, as with `apply`."""
        if part.is_first:
            self._index.forget(self._owner)
            self.log, self.next_sequence, self._in_snapshot = log, next_sequence, True
        elif not self._in_snapshot or (log, next_sequence) != (self.log, self.next_sequence):
            self.reset()
            return False
        for chain in part.chains:
            self._store(chain)
        self._in_snapshot = not part.is_last
        return True

    def interrupted(self) -> None:
        """The connection broke. Events continue where they stopped; an incomplete snapshot is
        dropped."""
        if self._in_snapshot:
            self.reset()

    def reset(self) -> None:
        """Forget the replica's blocks; a snapshot is needed."""
        self._index.forget(self._owner)
        self.log = self.next_sequence = 0
        self._in_snapshot = False

    def _store(self, event: BlocksStored) -> None:
        self._check(event.blocks)
        num_full, rest = divmod(event.num_tokens, self._block_tokens)
        if num_full + (rest > 0) != len(event.blocks) or len(event.parent) != HASH_BYTES:
            raise MalformedFrameError(
                f"a replica stored {len(event.blocks)} blocks of {self._block_tokens} tokens with "
                f"{event.num_tokens} tokens in all, which cannot be"
            )
        # No block follows one that is not full, and a prompt that ends in it saves little.
        self._index.store(self._owner, event.parent, event.blocks[:num_full])

    def _check(self, blocks: Sequence[bytes]) -> None:
        if any(len(block) != HASH_BYTES for block in blocks):
            raise MalformedFrameError(
                f"a replica named a block by a hash that has not {HASH_BYTES} bytes"
            )
