"""A map of bounded size that drops what was not used for longest (pure)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Reversible
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class LruMap(Generic[KeyT, ValueT]):
    """At most `max_entries` entries; one more drops the least recently used. An entry is used when
    it is read with `get` and when it is written. Every operation takes constant time. Not
    thread-safe."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries: OrderedDict[KeyT, ValueT] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: KeyT) -> bool:
        """Whether an entry has this key; does not count as a use."""
        return key in self._entries

    def get(self, key: KeyT) -> ValueT | None:
        """The value, used now; None without one."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def peek(self, key: KeyT) -> ValueT | None:
        """The value, no more recently used than before; None without one."""
        return self._entries.get(key)

    def put(self, key: KeyT, value: ValueT) -> None:
        """Write an entry, used now."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def pop(self, key: KeyT) -> ValueT | None:
        """Remove an entry: its value, None without one."""
        return self._entries.pop(key, None)

    def items(self) -> Reversible[tuple[KeyT, ValueT]]:
        """All entries, the least recently used first. None is used by that."""
        return self._entries.items()

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
