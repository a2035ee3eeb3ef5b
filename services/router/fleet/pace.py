"""What an engine call takes on replicas of one kind (pure).

Each replica fits the cost of its calls to those it has made lately, so what it says is some percent
off, and more while it has made few. Whoever chose the least of a thousand such figures would send
everything, from all regions, to the replicas that err most in their own favour. Replicas of one
model mostly run on the same machines: the median of what they say is taken for each of them that
is not clearly of another kind.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median
from typing import Final, TypeAlias

KIND_RATIO: Final = 1.75
"""A replica whose calls take so many times as long as the median, or as little, is another kind."""
_CALL_ROWS: Final = 256
"""Of the call by which kinds are told apart: a prompt's."""

CallCost: TypeAlias = tuple[float, float]
"""`fixed_ms`, `row_ms`: a call of n rows takes fixed_ms + row_ms * n."""


@dataclass(slots=True)
class _Peers:
    said: dict[str, CallCost] = field(default_factory=dict)
    middle: CallCost = (0.0, 0.0)
    num_new: int = 0
    """Figures that came since the median was taken."""

    def refresh(self) -> None:
        """Take the median anew after every fourth of them said something: that is soon enough, and
        costs little in a large region."""
        self.num_new += 1
        if 4 * self.num_new >= len(self.said):
            costs = self.said.values()
            self.middle = median(fixed for fixed, _ in costs), median(row for _, row in costs)
            self.num_new = 0


class Pace:
    """Costs of calls by replica. A group is what one kind of machine is likely in."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Peers] = {}
        self._group_of: dict[str, Hashable] = {}

    def said(self, name: str, group: Hashable, cost: CallCost) -> None:
        """A replica tells what its calls take."""
        if self._group_of.get(name, group) != group:
            self.forget(name)
        self._group_of[name] = group
        peers = self._groups.setdefault(group, _Peers())
        peers.said[name] = cost
        peers.refresh()

    def forget(self, name: str) -> None:
        """A replica is gone. Unknown ones are ignored."""
        group = self._group_of.pop(name, None)
        peers = self._groups.get(group)
        if peers is not None:
            del peers.said[name]
            if not peers.said:
                del self._groups[group]

    def cost(self, name: str, unsaid: CallCost) -> CallCost:
        """What a call takes on a replica; `unsaid` if it has said nothing."""
        if name not in self._group_of:
            return unsaid
        peers = self._groups[self._group_of[name]]
        own = peers.said[name]
        return peers.middle if _is_one_kind(own, peers.middle) else own


def _is_one_kind(one: CallCost, other: CallCost) -> bool:
    one_ms, other_ms = (fixed + row * _CALL_ROWS for fixed, row in (one, other))
    return max(one_ms, other_ms) <= KIND_RATIO * min(one_ms, other_ms)
