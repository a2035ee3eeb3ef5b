"""One replica's block events, from its log into the prefix index (pure).

A replica numbers its events. Where one is missing, or the log is another one (it was restarted),
what is known of its blocks may be wrong, so it is forgotten and a snapshot is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from outrider.codec.block_hashes import HASH_BYTES
from outrider.errors import MalformedFrameError
from services.router.prefixes.index import PrefixIndex


@dataclass(frozen=True, slots=True)
class Stored:
    """These blocks are held from now on, each behind the one before it."""

    parent: bytes
    blocks: Sequence[bytes]
    num_tokens: int
    """In all of them; less than whole blocks' if the last one is not full."""


@dataclass(frozen=True, slots=True)
class Removed:
    """These blocks are held no more."""

    blocks: Sequence[bytes]


BlockEvent: TypeAlias = Stored | Removed


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a snapshot."""

    chains: Sequence[Stored]
    is_first: bool
    is_last: bool


class Follower:
    """Where one replica's events stand. Another one after the replica's block size changed."""

    def __init__(self, index: PrefixIndex, owner: int, block_tokens: int) -> None:
        self._index = index
        self._owner = owner
        self._block_tokens = block_tokens
        self.log = 0
        """Of the last response taken; 0: a snapshot is wanted."""
        self.next_sequence = 0
        """Number of the next event wanted."""
        self._in_snapshot = False

    def events(self, log: int, sequence: int, events: Sequence[BlockEvent]) -> bool:
        """Take events of which the first has number `sequence`. False if some before it are
        missing: ask again from `log` and `next_sequence`, which are 0 then.

        Raises MalformedFrameError for what no replica sends.
        """
        if log != self.log or sequence != self.next_sequence or self._in_snapshot:
            self.reset()
            return False
        for event in events:
            if isinstance(event, Stored):
                self._store(event)
            else:
                self._check(event.blocks)
                self._index.remove(self._owner, event.blocks)
        self.next_sequence += len(events)
        return True

    def snapshot(self, log: int, next_sequence: int, part: Part) -> bool:
        """Take a part of a snapshot, behind which events go on with `next_sequence`. False if
        a part before it is missing, as with `events`."""
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
        """The connection broke. Events go on where they stopped; half a snapshot does not."""
        if self._in_snapshot:
            self.reset()

    def reset(self) -> None:
        """What is known of the replica's blocks does not hold any more."""
        self._index.forget(self._owner)
        self.log = self.next_sequence = 0
        self._in_snapshot = False

    def _store(self, event: Stored) -> None:
        self._check(event.blocks)
        num_full, rest = divmod(event.num_tokens, self._block_tokens)
        if num_full + (rest > 0) != len(event.blocks) or len(event.parent) != HASH_BYTES:
            raise MalformedFrameError(
                f"A replica stored {len(event.blocks)} blocks of {self._block_tokens} tokens with "
                f"{event.num_tokens} tokens in all, which cannot be."
            )
        # Nobody can follow a block that is not full, and a prompt that ends in it saves little.
        self._index.store(self._owner, event.parent, event.blocks[:num_full])

    def _check(self, blocks: Sequence[bytes]) -> None:
        if any(len(block) != HASH_BYTES for block in blocks):
            raise MalformedFrameError(f"A replica named a block by other than {HASH_BYTES} bytes.")
