"""Changes of the prefix cache, as numbered events that routers can follow (pure).

The model thread's pool records them; the event loop's ledger numbers and keeps them. A follower
remembers the number of the next event it wants. The ledger keeps a bounded number of events: a
follower that fell behind finds a gap, and takes a snapshot instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

MAX_EVENT_BLOCKS = 256
"""Most blocks in one event; a longer chain continues in the next event."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A chain of blocks can be reused from now on: each one's parent is the one before it."""

    parent: bytes
    """Hash of the block, or root, that the first one follows (outrider.codec.block_hashes)."""
    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """These blocks cannot be reused any more."""

    hashes: tuple[bytes, ...]


BlockEvent: TypeAlias = Stored | Removed


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is stored before event number `next_number`; parents come before children."""

    next_number: int
    chains: tuple[Stored, ...]


class BlockRecorder:
    """Gathers events between two takes; neighbours that belong together become one."""

    def __init__(self) -> None:
        self._events: list[BlockEvent] = []

    def stored(self, parent: bytes, block: bytes) -> None:
        """A block was published behind `parent`."""
        last = self._events[-1] if self._events else None
        fits = isinstance(last, Stored) and len(last.hashes) < MAX_EVENT_BLOCKS
        if isinstance(last, Stored) and fits and last.hashes[-1] == parent:
            self._events[-1] = Stored(last.parent, (*last.hashes, block))
        else:
            self._events.append(Stored(parent, (block,)))

    def removed(self, block: bytes) -> None:
        """A block was evicted."""
        last = self._events[-1] if self._events else None
        if isinstance(last, Removed) and len(last.hashes) < MAX_EVENT_BLOCKS:
            self._events[-1] = Removed((*last.hashes, block))
        else:
            self._events.append(Removed((block,)))

    def take(self) -> tuple[BlockEvent, ...]:
        """The events since the last take, in order."""
        events, self._events = tuple(self._events), []
        return events


class BlockLedger:
    """The latest events by number, from 1 on, and what they add up to.

    Keeps events of up to `max_blocks` blocks, and always the last one.
    """

    def __init__(self, max_blocks: int = 8192) -> None:
        self.next_number = 1
        """The number of the next event to come."""
        self._max_blocks = max_blocks
        self._events: deque[BlockEvent] = deque()
        self._num_blocks = 0
        # In order of storing: a parent is stored before its children, and removed after them.
        self._parents: dict[bytes, bytes] = {}

    @property
    def num_stored(self) -> int:
        """Blocks that can be reused now."""
        return len(self._parents)

    def add(self, events: Sequence[BlockEvent]) -> None:
        """Number these events and keep them, dropping the oldest beyond the bound."""
        for event in events:
            self._replay(event)
            self._events.append(event)
            self._num_blocks += len(event.hashes)
            self.next_number += 1
        while self._num_blocks > self._max_blocks and len(self._events) > 1:
            self._num_blocks -= len(self._events.popleft().hashes)

    def since(self, number: int, max_events: int) -> tuple[BlockEvent, ...] | None:
        """Up to `max_events` events from `number` on; empty if that is the next to come. None if
        some are no longer kept, or if this ledger never gave `number`."""
        first = self.next_number - len(self._events)
        if not first <= number <= self.next_number:
            return None
        return tuple(islice(self._events, number - first, number - first + max_events))

    def snapshot(self) -> Snapshot:
        """All that is stored now."""
        chains: list[tuple[bytes, list[bytes]]] = []
        last, room = b"", 0
        for block, parent in self._parents.items():
            if parent != last or room == 0:
                chains.append((parent, []))
                room = MAX_EVENT_BLOCKS
            chains[-1][1].append(block)
            last, room = block, room - 1
        stored = tuple(Stored(parent, tuple(blocks)) for parent, blocks in chains)
        return Snapshot(self.next_number, stored)

    def _replay(self, event: BlockEvent) -> None:
        if isinstance(event, Removed):
            for block in event.hashes:
                del self._parents[block]
            return
        parent = event.parent
        for block in event.hashes:
            self._parents[block] = parent
            parent = block
