"""Turns between those who ask: origins first, then the clients of each. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from outrider.fair_queue import FairClock, FairItem, FairQueue

_MAX_CLIENTS: Final = 1024
"""Clients of one origin that are told apart; when there are more, all start anew."""


class Requester(NamedTuple):
    """Who asks for something. Turns are shared equally between origins that wait, and what an
    origin gets, between its clients."""

    origin: str = ""
    """The tenant, or the address prefix of clients without one."""
    client: str = ""
    """One client, or a user of the tenant."""

    @classmethod
    def of(cls, tenant: str, address_hash: bytes, group: bytes) -> Requester:
        """A client of a tenant, or without one of an address prefix, given by its keyed hash; where
        neither is known its trust group is the origin. No tenant's name begins with a NUL."""
        return cls(tenant or f"\0{(address_hash or group).hex()}", group.hex())


ANYBODY: Final = Requester()
"""Asks for nobody in particular."""


class Waiting(FairItem, Protocol):
    """What waits for its turn."""

    rank: float
    """Set by `Turns`."""

    @property
    def requester(self) -> Requester:
        """Whose it is; `flow` is its origin."""
        ...


WaitingT = TypeVar("WaitingT", bound=Waiting)


@dataclass(slots=True)
class _OriginClock:
    """Virtual time of what one origin waits for: start-time fair queueing (see `FairQueue`) between
    its clients, with starts that are set when items come."""

    now: float = 0.0
    """Start of the item that was served last."""
    finishes: dict[str, float] = field(default_factory=dict)
    """When the last item of each client finishes."""
    num_waiting: int = 0

    def start(self, client: str, cost: float) -> float:
        """The start of a client's next item."""
        if len(self.finishes) > _MAX_CLIENTS:
            self.finishes.clear()
        start = max(self.now, self.finishes.get(client, 0.0))
        self.finishes[client] = start + cost
        return start

    def uncharge(self, client: str, start: float, cost: float) -> None:
        """A client's item was given up; if it was its last one, the next takes its place."""
        if self.finishes.get(client) == start + cost:
            self.finishes[client] = start


class TurnClock:
    """Virtual time of queues that share it: a turn in one of them counts in all."""

    def __init__(self) -> None:
        self.between_origins = FairClock()
        self.origins: dict[str, _OriginClock] = {}
        """Of those that wait."""


class Turns(Generic[WaitingT]):
    """A queue that is fair between origins, and between the clients of each."""

    def __init__(self, clock: TurnClock | None = None) -> None:
        """`clock`: shared by all queues between which turns are fair; None: one of its own."""
        self._clock = clock or TurnClock()
        self._queue: FairQueue[WaitingT] = FairQueue(self._clock.between_origins)

    def __len__(self) -> int:
        return len(self._queue)

    def __contains__(self, item: WaitingT) -> bool:
        return item in self._queue

    def push(self, item: WaitingT) -> None:
        """Add an item."""
        origin = self._clock.origins.setdefault(item.requester.origin, _OriginClock())
        origin.num_waiting += 1
        item.rank = origin.start(item.requester.client, item.cost)
        self._queue.push(item)

    def peek(self) -> WaitingT | None:
        """The item whose turn it is; None if the queue is empty."""
        return self._queue.peek()

    def head(self) -> tuple[float, WaitingT] | None:
        """That item, and the virtual time at which it starts, which may be compared between queues
        that share a clock."""
        return self._queue.head()

    def pop(self, item: WaitingT) -> None:
        """Remove the item that `peek` returned; the turn was its requester's."""
        self._queue.pop(item)
        origin = self._clock.origins[item.requester.origin]
        origin.now = max(origin.now, item.rank)
        self._left(item)

    def remove(self, item: WaitingT) -> None:
        """Remove an item that had no turn; nobody is charged for it."""
        self._queue.remove(item)
        origin = self._clock.origins[item.requester.origin]
        origin.uncharge(item.requester.client, item.rank, item.cost)
        self._left(item)

    def _left(self, item: WaitingT) -> None:
        origin = self._clock.origins[item.requester.origin]
        origin.num_waiting -= 1
        if not origin.num_waiting:
            del self._clock.origins[item.requester.origin]
