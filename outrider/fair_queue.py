"""Queues that are fair between flows, such as tenants (pure)."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

MAX_IDLE_FLOWS: Final = 1024
"""Flows without a waiting item whose last virtual finish time is remembered."""


class FairItem(Hashable, Protocol):
    """An item that waits. It is equal only to itself."""

    @property
    def flow(self) -> str:
        """Key of the flow that it belongs to."""
        ...

    @property
    def cost(self) -> float:
        """Amount charged to its flow when it is served, scaled by the flow's weight."""
        ...

    @property
    def rank(self) -> float:
        """Orders the items of one flow, least first, for example a deadline; equal ones are ordered
        by arrival."""
        ...


ItemT = TypeVar("ItemT", bound=FairItem)

_Entry: TypeAlias = tuple[float, int, ItemT]
"""Rank, number in order of arrival, item."""


@dataclass(slots=True, eq=False)
class _Flow(Generic[ItemT]):
    """Waiting items of one flow."""

    start: float
    """Virtual time at which its next item starts, or earlier: another queue may have served the
    flow since."""
    waiting: list[_Entry[ItemT]] = field(default_factory=list)
    """Sorted by rank, then by arrival."""


class FairClock:
    """Virtual time of queues that share it: service of a flow in one of them counts in all."""

    def __init__(self) -> None:
        self.now = 0.0
        """The latest start of an item that was served."""
        self.finishes: dict[str, float] = {}
        """Virtual time at which the last item of each remembered flow finished; read-only."""
        self._waiting: Counter[str] = Counter()
        """Number of waiting items of flows that have any."""

    def __len__(self) -> int:
        """Number of flows remembered."""
        return len(self.finishes)

    def num_waiting(self, flow: str) -> int:
        """Number of waiting items of a flow."""
        return self._waiting[flow]

    def served(self, flow: str, start: float, cost: float) -> None:
        """Record that an item of a flow was served."""
        self.now = max(self.now, start)
        self.finishes[flow] = start + cost

    def joined(self, flow: str) -> None:
        """Record that an item of a flow waits."""
        self._waiting[flow] += 1

    def left(self, flow: str) -> None:
        """Record that an item of a flow no longer waits. Idle flows that start no later than new
        ones would are dropped; if too many remain, so are those nearest to that."""
        self._waiting[flow] -= 1
        if not self._waiting[flow]:
            del self._waiting[flow]
        if not self._waiting:
            self.now = 0.0
            self.finishes.clear()
        elif len(self.finishes) - len(self._waiting) > MAX_IDLE_FLOWS:
            idle = sorted(
                (finish, key) for key, finish in self.finishes.items() if key not in self._waiting
            )
            num_excess = len(idle) - MAX_IDLE_FLOWS // 2
            for count, (finish, key) in enumerate(idle):
                if count < num_excess or finish <= self.now:
                    del self.finishes[key]


class FairQueue(Generic[ItemT]):
    """A queue that is fair between flows, and serves the least rank first within each.

    Between flows: start-time fair queueing (Goyal, Vin, Cheng: "Start-time fair queuing", SIGCOMM
    1996). A flow's next item starts at the virtual time at which its last one finished, or now if
    it had none waiting, and finishes `cost` later. The least start is served first and is the
    virtual time from then on. While two flows wait, their service differs by at most one item of
    each (theorem 1 there), however long their queues are. With several queues, one that was not
    served for a while is behind the clock: a flow that joins it starts no later than those that
    have waited there.

    Within a flow the order has no effect on other flows. With deadlines as ranks it is earliest
    deadline first (Liu, Layland, 1973).
    """

    def __init__(self, clock: FairClock | None = None) -> None:
        """`clock`: shared by all queues between which flows are fair; None: a clock of its own."""
        self._clock = FairClock() if clock is None else clock
        self._flows: dict[str, _Flow[ItemT]] = {}
        """Flows with items waiting, by key."""
        self._starts: list[tuple[float, str]] = []
        """The same flows as (start, key), sorted."""
        self._entries: dict[ItemT, _Entry[ItemT]] = {}
        """Waiting items in order of arrival."""
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: ItemT) -> bool:
        return item in self._entries

    @property
    def num_flows(self) -> int:
        """Number of flows with items waiting."""
        return len(self._starts)

    def length(self, flow: str) -> int:
        """Number of waiting items of a flow."""
        found = self._flows.get(flow)
        return len(found.waiting) if found else 0

    def oldest(self) -> ItemT | None:
        """The item that has waited longest; None if the queue is empty."""
        return next(iter(self._entries), None)

    def push(self, item: ItemT) -> None:
        """Add an item."""
        flow = self._flows.get(item.flow)
        if flow is None:
            now = min(self._clock.now, self.start())
            finish = self._clock.finishes.get(item.flow, 0.0)
            flow = self._flows[item.flow] = _Flow(max(now, finish))
            insort(self._starts, (flow.start, item.flow))
        self._clock.joined(item.flow)
        self._next += 1
        entry = self._entries[item] = (item.rank, self._next, item)
        insort(flow.waiting, entry)

    def start(self) -> float:
        """Virtual time at which the next item starts; infinite without one."""
        head = self.head()
        return math.inf if head is None else head[0]

    def peek(self) -> ItemT | None:
        """The item to serve next; None if the queue is empty."""
        head = self.head()
        return None if head is None else head[1]

    def head(self) -> tuple[float, ItemT] | None:
        """The item to serve next, and the virtual time at which it starts; None if the queue is
        empty."""
        starts, finishes = self._starts, self._clock.finishes
        while starts:
            start, key = starts[0]
            finish = finishes.get(key, 0.0)
            if finish <= start:
                return start, self._flows[key].waiting[0][2]
            del starts[0]
            self._flows[key].start = finish
            insort(starts, (finish, key))
        return None

    def pop(self, item: ItemT) -> None:
        """Remove the item that `peek` returned, and charge its flow for it."""
        start = max(self._flows[item.flow].start, self._clock.finishes.get(item.flow, 0.0))
        self._clock.served(item.flow, start, item.cost)
        self.remove(item)

    def remove(self, item: ItemT) -> None:
        """Remove an item that was not served; its flow is not charged."""
        flow = self._flows[item.flow]
        entry = self._entries.pop(item)
        del flow.waiting[bisect_left(flow.waiting, entry)]
        if not flow.waiting:
            del self._starts[bisect_left(self._starts, (flow.start, item.flow))]
            del self._flows[item.flow]
        self._clock.left(item.flow)

    def last_of_longest(self) -> ItemT | None:
        """The item to shed: the last one of the flow with the most waiting items in all queues of
        this clock (longest queue drop: Suter et al., "Buffer management schemes for supporting TCP
        in gigabit routers with per-flow queueing", 1999)."""
        if not self._starts:
            return None
        _, flow = max(self._starts, key=lambda entry: (self._clock.num_waiting(entry[1]), entry))
        return self._flows[flow].waiting[-1][2]
