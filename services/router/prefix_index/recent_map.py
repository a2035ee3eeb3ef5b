"""A map of bounded size that keeps recently used entries (pure).

Two generations: entries are written to the young one. When it is full, or by `rotate`, it replaces
the old one, whose entries are dropped, so entries are never moved or counted one by one (the
two-space scheme of 2Q caches, Johnson and Shasha, 1994, without its third queue). Unlike
outrider.lru_map it uses plain dicts, for tens of thousands of block hashes, and lets entries expire
together.
"""

from __future__ import annotations

from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class RecentMap(Generic[KeyT, ValueT]):
    """At most 2 * `max_young` entries; the `max_young` written last are always there."""

    def __init__(self, max_young: int) -> None:
        self._max_young = max_young
        self.young: dict[KeyT, ValueT] = {}
        self.old: dict[KeyT, ValueT] = {}

    def __len__(self) -> int:
        return len(self.young) + len(self.old)

    def get(self, key: KeyT) -> ValueT | None:
        """The value; reading an entry makes it young again."""
        found = self.young.get(key)
        if found is None:
            found = self.old.pop(key, None)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: KeyT, value: ValueT) -> None:
        """Write an entry."""
        if len(self.young) >= self._max_young:
            self.rotate()
        self.young[key] = value

    def rotate(self) -> None:
        """Drop the old generation; the young one becomes the old one."""
        self.young, self.old = {}, self.young

    def clear(self) -> None:
        """Drop all entries."""
        self.young, self.old = {}, {}
