"""A map of bounded size that drops what was not used for longest (pure)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Reversible
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class LruMap(Generic[KeyT, ValueT]):
    """At most `max_entries` entries, of at most `max_weight` together; beyond that, the least
    recently used are dropped. An entry is used when it is read with `get` and when it is written.
    Every operation takes constant time, unless it says otherwise. Not thread-safe."""

    def __init__(
        self,
        max_entries: float,
        *,
        max_weight: float = math.inf,
        weigh: Callable[[KeyT, ValueT], int] | None = None,
        on_drop: Callable[[ValueT], object] | None = None,
    ) -> None:
        """`weigh` tells the weight of an entry, which does not change; None: nothing weighs
        anything. `on_drop` is given each value that was dropped for want of room."""
        self._max_entries = max_entries
        self._max_weight = max_weight
        self._weigh = weigh
        self._on_drop = on_drop
        self._entries: OrderedDict[KeyT, ValueT] = OrderedDict()
        self.weight = 0
        """Sum of the weights of all entries."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: KeyT) -> bool:
        """Whether an entry has this key; does not count as a use."""
        return key in self._entries

    @property
    def is_full(self) -> bool:
        """Whether there are as many entries as may be."""
        return len(self._entries) >= self._max_entries

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
        """Write an entry, used now. One that alone weighs too much is not kept, nor what its key
        had before."""
        if self._weigh is not None:
            self.pop(key)
            weight = self._weigh(key, value)
            if weight > self._max_weight:
                return
            self.weight += weight
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self._max_entries or self.weight > self._max_weight:
            self.drop_oldest()

    def pop(self, key: KeyT) -> ValueT | None:
        """Remove an entry: its value, None without one."""
        value = self._entries.pop(key, None)
        if self._weigh is not None and value is not None:
            self.weight -= self._weigh(key, value)
        return value

    def pop_first(self, may_go: Callable[[ValueT], bool]) -> ValueT | None:
        """Remove the least recently used entry that may go: its value, None without one. Takes time
        in proportion to those before it."""
        key = next((key for key, value in self._entries.items() if may_go(value)), None)
        return None if key is None else self.pop(key)

    def drop_oldest(self) -> None:
        """Drop the least recently used entry, as for want of room. Raises KeyError without any."""
        key, value = self._entries.popitem(last=False)
        if self._weigh is not None:
            self.weight -= self._weigh(key, value)
        if self._on_drop is not None:
            self._on_drop(value)

    def items(self) -> Reversible[tuple[KeyT, ValueT]]:
        """All entries, the least recently used first. None is used by that."""
        return self._entries.items()

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self.weight = 0
