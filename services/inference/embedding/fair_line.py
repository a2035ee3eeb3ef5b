"""Which tenant's input is next (pure): start-time fair queueing (Goyal, Vin and Cheng, 1996).

An input's place is the end of its tenant's previous one, or the line's beginning if that is later;
its own end is as many tokens further on. An empty line begins where it last was, so a tenant
without waiting inputs but with running ones is not placed behind a new tenant. So a tenant with ten
thousand waiting inputs takes turns with one that has ten, and a single tenant is served in order of
arrival.
"""

from __future__ import annotations

import heapq
from typing import Final

_SLACK: Final = 64
"""Entries of inputs that are gone, beyond as many as are there, before they are swept."""


class FairLine:
    """Keys in order of their places."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._places: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: int) -> bool:
        return key in self._places

    @property
    def first(self) -> int:
        """Raises IndexError for an empty line."""
        while self._heap[0][1] not in self._places:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    @property
    def begins_at(self) -> float:
        """The first one's place; 0 of an empty line."""
        return self._places[self.first] if self._places else 0.0

    def add(self, key: int, place: float) -> None:
        """A key that is not there."""
        self._places[key] = place
        heapq.heappush(self._heap, (place, key))

    def discard(self, key: int) -> bool:
        """Whether it was there."""
        if self._places.pop(key, None) is None:
            return False
        if len(self._heap) > 2 * len(self._places) + _SLACK:
            self._heap = [(place, known) for known, place in self._places.items()]
            heapq.heapify(self._heap)
        return True

    def take(self, most: int) -> list[int]:
        """The first so many, which leave the line."""
        taken: list[int] = []
        while self._places and len(taken) < most:
            taken.append(self.first)
            self.discard(taken[-1])
        return taken


class TenantShares:
    """Place of each tenant's next input. Tenants without inputs are forgotten."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def place(self, tenant: str, num_tokens: int, begins_at: float) -> float:
        """Place of a new input; `begins_at`: the line's beginning."""
        start = max(begins_at, self._ends.get(tenant, 0.0))
        self._ends[tenant] = start + num_tokens
        self._counts[tenant] = self._counts.get(tenant, 0) + 1
        return start

    def left(self, tenant: str) -> None:
        """One of its inputs is done."""
        self._counts[tenant] -= 1
        if not self._counts[tenant]:
            del self._counts[tenant], self._ends[tenant]

    def __len__(self) -> int:
        return len(self._counts)
