"""Who holds how much, and who holds most. Pure.

Holders are shares of origins (services.edge.identity): a tenant, or an address prefix and a client
there. Who holds most is a share of the origin that holds most, so that nobody is better off as many
clients at one address. What is dropped when there is no more room is his (longest queue drop:
Suter et al., "Buffer management schemes for supporting TCP in gigabit routers with per-flow
queueing", 1999): more than the whole allows is held in all, so he who holds most of n holds more
than an n-th of it, and who holds no more than that never loses anything to him.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple


class Holder(NamedTuple):
    """Whose something is."""

    origin: str
    share: str
    """Within the origin."""


class _Ranking:
    """Amounts by name, in order: a change is a search by halves."""

    def __init__(self) -> None:
        self._amounts: dict[str, int] = {}
        self._order: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._order)

    @property
    def first(self) -> str:
        """The name of the greatest amount; there is one."""
        return self._order[-1][1]

    def add(self, name: str, change: int) -> None:
        """Amounts are not negative; at nothing the name is forgotten."""
        before = self._amounts.pop(name, 0)
        if before:
            del self._order[bisect_left(self._order, (before, name))]
        if before + change:
            self._amounts[name] = before + change
            insort(self._order, (before + change, name))


class Holders:
    """Amounts of one kind."""

    def __init__(self) -> None:
        self._origins = _Ranking()
        self._shares: dict[str, _Ranking] = {}
        self.total = 0

    def add(self, holder: Holder, change: int) -> None:
        """So much more is held, or less."""
        if not change:
            return
        self.total += change
        self._origins.add(holder.origin, change)
        shares = self._shares.setdefault(holder.origin, _Ranking())
        shares.add(holder.share, change)
        if not shares:
            del self._shares[holder.origin]

    @property
    def first(self) -> Holder:
        """Who holds most; somebody holds something."""
        origin = self._origins.first
        return Holder(origin, self._shares[origin].first)
