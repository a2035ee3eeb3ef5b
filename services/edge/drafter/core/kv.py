"""Blocks of the draft model's KV, and which of them a line of text has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from outrider.engines.base import EngineInfo


@dataclass(slots=True)
class Kv:
    """KV of one line of text: positions 0 .. length - 1 are computed."""

    sequence: int
    """The engine's number for it."""
    table: list[int] = field(default_factory=list)
    """Blocks in order."""
    num_shared: int = 0
    """The first blocks belong to another line, which lives longer."""
    length: int = 0

    @property
    def owned(self) -> list[int]:
        """The blocks to give back."""
        return self.table[self.num_shared :]

    def crop(self, length: int) -> None:
        """Nothing from position `length` on is right any more."""
        self.length = min(self.length, length)


@dataclass(frozen=True, slots=True)
class Orders:
    """What the engine has to do before the next rounds, in this order."""

    closes: tuple[int, ...]
    """Sequences that end."""
    opens: tuple[int, ...]
    """Sequences that begin."""
    copies: tuple[tuple[int, int], ...]
    """Blocks to copy: from, to."""


class KvRoom:
    """Hands out an engine's sequences and blocks."""

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
        """Blocks that nobody has."""
        return len(self._free)

    def new(self) -> Kv:
        """KV of nothing."""
        self._last_sequence += 1
        self._opens[self._last_sequence] = None
        return Kv(self._last_sequence)

    def share(self, source: Kv, length: int) -> Kv | None:
        """KV of the first `length` tokens of `source`: whole blocks are shared, the one that both
        will write to is copied. None if there is no block for that."""
        num_shared, inside = divmod(length, self._block_tokens)
        if inside and not self._free:
            return None
        kv = self.new()
        kv.num_shared, kv.length, kv.table = num_shared, length, source.table[:num_shared]
        if inside:
            kv.table.append(self._free.pop())
            self._copies.append((source.table[num_shared], kv.table[-1]))
        return kv

    def missing(self, kv: Kv, num_tokens: int) -> int:
        """Blocks that the table lacks to hold so many tokens."""
        wanted = -(-(num_tokens + self._scratch_tokens) // self._block_tokens)
        return max(0, wanted - len(kv.table))

    def extend(self, kv: Kv, num_tokens: int) -> bool:
        """Give it blocks for so many tokens; False, and nothing changes, if there are not enough
        free ones."""
        count = self.missing(kv, num_tokens)
        if count > len(self._free):
            return False
        kv.table += [self._free.pop() for _ in range(count)]
        return True

    def release(self, dropped: Iterable[Kv]) -> None:
        """Nobody reads these any more."""
        for kv in dropped:
            self._free += kv.owned
            if kv.sequence in self._opens:
                del self._opens[kv.sequence]
            else:
                self._closes.append(kv.sequence)

    def take_orders(self) -> Orders:
        """What was handed out and given back since the last time."""
        orders = Orders(tuple(self._closes), tuple(self._opens), tuple(self._copies))
        self._opens, self._closes, self._copies = {}, [], []
        return orders
