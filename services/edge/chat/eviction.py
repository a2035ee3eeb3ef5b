"""Whose chats are given up when there is no more room: those of whoever holds most (pure).

Usage is counted per origin, and within it per share (services.edge.access.identity): a tenant is
one origin with one share, an address prefix is an origin whose clients are its shares. Whoever
holds most is the largest share of the largest origin, so that nobody is better off as many clients
at one address. This is longest queue drop (Suter et al., "Buffer management schemes for supporting
TCP in gigabit routers with per-flow queueing", 1999): when the limit is exceeded, the largest of n
origins holds more than an n-th of it, so an origin within its n-th never loses anything to others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple


class EvictionKey(NamedTuple):
    """Under whose name something is counted."""

    origin: str
    share: str
    """Within the origin."""


class _Ranking:
    """Amounts by name, sorted: a change is a binary search."""

    def __init__(self) -> None:
        self._amounts: dict[str, int] = {}
        self._order: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._order)

    @property
    def largest(self) -> str:
        """Name with the greatest amount. There must be one."""
        return self._order[-1][1]

    def add(self, name: str, change: int) -> None:
        """Amounts are not negative; a name with none is forgotten."""
        before = self._amounts.pop(name, 0)
        if before:
            del self._order[bisect_left(self._order, (before, name))]
        if before + change:
            self._amounts[name] = before + change
            insort(self._order, (before + change, name))


class UsageRanking:
    """Amounts of one kind, by origin and share."""

    def __init__(self) -> None:
        self._origins = _Ranking()
        self._shares: dict[str, _Ranking] = {}
        self.total = 0

    def add(self, key: EvictionKey, change: int) -> None:
        """Add `change`, which may be negative, to the usage of `key`."""
        if not change:
            return
        self.total += change
        self._origins.add(key.origin, change)
        shares = self._shares.setdefault(key.origin, _Ranking())
        shares.add(key.share, change)
        if not shares:
            del self._shares[key.origin]

    @property
    def largest(self) -> EvictionKey:
        """Whoever holds most; somebody holds something."""
        origin = self._origins.largest
        return EvictionKey(origin, self._shares[origin].largest)
