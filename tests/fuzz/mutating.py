"""Damages good input, and keeps what brought a new answer, to damage it further (pure)."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Final

_NUMBERS: Final = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, 1 << 63)
_MAX_KEPT: Final = 512
_MAX_BYTES: Final = 1 << 16


class Mutator:
    """Endless damaged input, the same for the same seed and answers."""

    def __init__(self, seeds: Sequence[bytes], seed: int) -> None:
        """`seeds`: good input, one at least."""
        self._chance = random.Random(seed)
        self._kept = list(seeds)
        self._answers: set[str] = set()

    @property
    def num_answers(self) -> int:
        """Different answers so far."""
        return len(self._answers)

    def next(self) -> bytes:
        """The next input."""
        data = bytearray(self._chance.choice(self._kept))
        for _ in range(self._chance.choice((1, 1, 1, 2, 4, 8))):
            self._chance.choice(_CHANGES)(self, data)
        return bytes(data[:_MAX_BYTES])

    def answered(self, data: bytes, answer: str) -> None:
        """What the parser made of it, in few words: without numbers."""
        if answer not in self._answers and len(self._kept) < _MAX_KEPT:
            self._answers.add(answer)
            self._kept.append(data)

    def _at(self, data: bytearray) -> int:
        return self._chance.randrange(len(data) + 1)

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._chance.randrange(len(data))] ^= 1 << self._chance.randrange(8)

    def _cut(self, data: bytearray) -> None:
        at = self._at(data)
        del data[at : at + self._chance.choice((1, 2, 8, 64, 1024))]

    def _truncate(self, data: bytearray) -> None:
        del data[self._at(data) :]

    def _noise(self, data: bytearray) -> None:
        at = self._at(data)
        data[at:at] = self._chance.randbytes(self._chance.choice((1, 2, 8, 64)))

    def _number(self, data: bytearray) -> None:
        at, number = self._at(data), self._chance.choice(_NUMBERS)
        size = self._chance.choice((1, 2, 4, 8))
        order = self._chance.choice("<>")
        packed = struct.pack(f"{order}Q", number)
        data[at : at + size] = packed[:size] if order == "<" else packed[-size:]

    def _double(self, data: bytearray) -> None:
        first, last = sorted((self._at(data), self._at(data)))
        at = self._at(data)
        data[at:at] = data[first : min(last, first + 4096)]

    def _splice(self, data: bytearray) -> None:
        other = self._chance.choice(self._kept)
        data[self._at(data) :] = other[self._chance.randrange(len(other) + 1) :]


_CHANGES: Final[tuple[Callable[[Mutator, bytearray], None], ...]] = (
    Mutator._flip,
    Mutator._cut,
    Mutator._truncate,
    Mutator._noise,
    Mutator._number,
    Mutator._double,
    Mutator._splice,
)
