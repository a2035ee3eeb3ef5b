"""The cost of an engine call on each replica: the median over replicas of its kind (pure).

Each replica fits the cost of its calls to its latest ones, so the reported figures have an error of
some percent, and more after few calls. Choosing the least of a thousand such figures would send
everything to the replicas with the largest error in their own favour. Most replicas of one model
run on the same kind of machine, so each gets the median of their figures, except for those that are
clearly of another kind.

A replica that has computed too little to know reports a guess. A guess counts for nothing where
others have measured: if it is too high, its replica would get no prompts by which to know better.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median
from typing import Final, TypeAlias

KIND_RATIO: Final = 1.75
"""Ratio of call costs, of a replica and the median, above which the replica is of another kind."""
_CALL_ROWS: Final = 256
"""Rows of the engine call whose cost distinguishes kinds of machines: a prefill chunk."""

CallCost: TypeAlias = tuple[float, float]
"""`fixed_ms`, `row_ms`: a call of n rows takes fixed_ms + row_ms * n."""


@dataclass(slots=True)
class _Group:
    reported: dict[str, CallCost] = field(default_factory=dict)
    """By replica, what it has measured."""
    guessed: dict[str, CallCost] = field(default_factory=dict)
    """By replica that has not measured enough, what it starts from."""
    median: CallCost = (0.0, 0.0)
    num_new: int = 0
    """Reports since the median was taken."""

    def refresh(self) -> None:
        """Take the median again after as many reports as a quarter of the group."""
        self.num_new += 1
        if 4 * self.num_new >= len(self.reported):
            costs = self.reported.values()
            fixed_ms = median(fixed for fixed, _ in costs)
            self.median = (fixed_ms, median(row for _, row in costs))
            self.num_new = 0


class CallCosts:
    """Call costs by replica. A group (a model) mostly runs on one kind of machine."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}
        self._group_of: dict[str, Hashable] = {}

    def report(self, name: str, group: Hashable, cost: CallCost, *, is_guess: bool) -> None:
        """A replica reports what its calls take. `is_guess`: it has not measured it yet."""
        if self._group_of.get(name, group) != group:
            self.forget(name)
        self._group_of[name] = group
        peers = self._groups.setdefault(group, _Group())
        if is_guess:
            peers.reported.pop(name, None)
            peers.guessed[name] = cost
        else:
            peers.guessed.pop(name, None)
            peers.reported[name] = cost
            peers.refresh()

    def forget(self, name: str) -> None:
        """A replica is gone. Unknown ones are ignored."""
        group = self._group_of.pop(name, None)
        peers = self._groups.get(group)
        if peers is not None:
            peers.reported.pop(name, None)
            peers.guessed.pop(name, None)
            if not peers.reported and not peers.guessed:
                del self._groups[group]

    def cost(self, name: str, default: CallCost) -> CallCost:
        """Cost of a call on a replica; `default` if it has reported none."""
        if name not in self._group_of:
            return default
        peers = self._groups[self._group_of[name]]
        own = peers.reported.get(name)
        if own is None:
            return peers.median if peers.reported else peers.guessed[name]
        return peers.median if _is_one_kind(own, peers.median) else own


def _is_one_kind(one: CallCost, other: CallCost) -> bool:
    one_ms, other_ms = (fixed + row * _CALL_ROWS for fixed, row in (one, other))
    return max(one_ms, other_ms) <= KIND_RATIO * min(one_ms, other_ms)
