"""Slots in the order of their last use: a doubly linked list in two arrays (pure)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

_OUTSIDE = -1
_SENTINEL = 0


class LeafQueue:
    """Numbers from 0 on, least recently used first. Eight bytes for each number ever seen."""

    def __init__(self) -> None:
        # Place 0 is the sentinel between the newest and the oldest; slot n stands at place n + 1.
        self._older = array("i", [_SENTINEL])
        self._newer = array("i", [_SENTINEL])

    def __contains__(self, slot: int) -> bool:
        return slot + 1 < len(self._older) and self._older[slot + 1] != _OUTSIDE

    def __iter__(self) -> Iterator[int]:
        """Oldest first."""
        place = self._newer[_SENTINEL]
        while place != _SENTINEL:
            yield place - 1
            place = self._newer[place]

    @property
    def num_bytes(self) -> int:
        """Memory of the two arrays."""
        return 2 * self._older.itemsize * len(self._older)

    @property
    def oldest(self) -> int:
        """The least recently used slot; -1 if there is none."""
        return self._newer[_SENTINEL] - 1

    def push(self, slot: int) -> None:
        """A slot that is not in the queue becomes the newest."""
        place = slot + 1
        while len(self._older) <= place:
            self._older.append(_OUTSIDE)
            self._newer.append(_OUTSIDE)
        last = self._older[_SENTINEL]
        self._older[place], self._newer[place] = last, _SENTINEL
        self._newer[last] = self._older[_SENTINEL] = place

    def remove(self, slot: int) -> None:
        """A slot that is in the queue leaves it."""
        place = slot + 1
        older, newer = self._older[place], self._newer[place]
        self._newer[older], self._older[newer] = newer, older
        self._older[place] = self._newer[place] = _OUTSIDE

    def touch(self, slot: int) -> None:
        """A slot was used; nothing happens if it is not in the queue."""
        if slot in self:
            self.remove(slot)
            self.push(slot)
