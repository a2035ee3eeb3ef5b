"""Blocks of the draft model's KV, and which sequence holds which (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from outrider.engines.base import EngineInfo


@dataclass(slots=True)
class KvSequence:
    """KV of one branch's text: positions 0 .. length - 1 are computed."""

    sequence: int
    """The engine's number for it."""
    table: list[int] = field(default_factory=list)
    """Blocks in order."""
    num_shared: int = 0
    """The first blocks belong to another sequence, which lives longer."""
    length: int = 0

    @property
    def owned(self) -> list[int]:
        """The blocks that this sequence has to free."""
        return self.table[self.num_shared :]

    def crop(self, length: int) -> None:
        """Discard the KV from position `length` on."""
        self.length = min(self.length, length)


@dataclass(frozen=True, slots=True)
class KvOperations:
    """Operations of the engine before its next step, in this order."""

    closes: tuple[int, ...]
    """Sequences that end."""
    opens: tuple[int, ...]
    """Sequences that begin."""
    copies: tuple[tuple[int, int], ...]
    """Blocks to copy: from, to."""


class KvBlockPool:
    """Allocates an engine's sequences and blocks."""

    def __init__(self, info: EngineInfo) -> None:
        self._block_tokens = info.block_tokens
        self._scratch_tokens = info.scratch_tokens
        self._free = list(range(info.num_blocks - 1, -1, -1))
        self._last_sequence = 0
        self._opens: dict[int, None] = {}
        self._closes: list[int] = []
        self._copies: list[tuple[int, int]] = []

    @property
    def num_free(self) -> int:
        """Blocks in no sequence."""
        return len(self._free)

    def allocate(self) -> KvSequence:
        """An empty sequence."""
        self._last_sequence += 1
        self._opens[self._last_sequence] = None
        return KvSequence(self._last_sequence)

    def share(self, source: KvSequence, length: int) -> KvSequence | None:
        """KV of the first `length` tokens of `source`: whole blocks are shared, the one that both
        will write to is copied. None if no block is free for that."""
        num_shared, inside = divmod(length, self._block_tokens)
        if inside and not self._free:
            return None
        kv = self.allocate()
        kv.num_shared = num_shared
        kv.length = length
        kv.table = source.table[:num_shared]
        if inside:
            kv.table.append(self._free.pop())
            self._copies.append((source.table[num_shared], kv.table[-1]))
        return kv

    def num_missing(self, kv: KvSequence, num_tokens: int) -> int:
        """Blocks missing from the table to hold `num_tokens`."""
        wanted = -(-(num_tokens + self._scratch_tokens) // self._block_tokens)
        return max(0, wanted - len(kv.table))

    def extend(self, kv: KvSequence, num_tokens: int) -> bool:
        """Allocate blocks for `num_tokens`; False, and nothing changes, if not enough are free."""
        count = self.num_missing(kv, num_tokens)
        if count > len(self._free):
            return False
        kv.table += [self._free.pop() for _ in range(count)]
        return True

    def trim(self, kv: KvSequence) -> None:
        """Free the blocks behind those that hold its tokens."""
        num_blocks = max(kv.num_shared, -(-kv.length // self._block_tokens))
        self._free += kv.table[num_blocks:]
        del kv.table[num_blocks:]

    def free(self, dropped: Iterable[KvSequence]) -> None:
        """Free these sequences, and the blocks they own."""
        for kv in dropped:
            self._free += kv.owned
            if kv.sequence in self._opens:
                del self._opens[kv.sequence]
            else:
                self._closes.append(kv.sequence)

    def take_operations(self) -> KvOperations:
        """Engine operations for everything allocated and freed since the last call."""
        operations = KvOperations(tuple(self._closes), tuple(self._opens), tuple(self._copies))
        self._opens = {}
        self._closes = []
        self._copies = []
        return operations
