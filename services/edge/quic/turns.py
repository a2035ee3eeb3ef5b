"""Whose datagram is next: every address in turn and of one address every sender, so that who sends
a book does not hold up those who ask a question; and while others are there, nobody takes more than
a share of the event loop's time (pure).

What an address has used is one number, the time at which its share has paid for it: an address that
is more than a burst ahead of its share rests until it is not (the virtual scheduling form of the
generic cell rate algorithm, ITU-T I.371, annex A).
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

SourceT = TypeVar("SourceT", bound=Hashable)

MEMORY_S: Final = 10.0
"""Others are there for so long after their last datagram."""
MAX_ADDRESSES: Final = 4096
"""Whose use is remembered; of more, those that have used nothing for longest are forgotten."""
_ADDRESS_PART: Final = 4
"""An address may hold a quarter of all the room, whatever number of senders it has: one that
rests would otherwise leave others none."""
_ENTRY_BYTES: Final = 128
"""Of one datagram, besides its data."""


@dataclass(frozen=True, slots=True)
class Share:
    """Of the event loop's time, for the datagrams of one address while others are there."""

    of_second: float = 0.25
    """Seconds per second on average..."""
    burst_s: float = 0.5
    """...and so many at once after a pause."""


class _Use(NamedTuple):
    """Of one address."""

    paid_at: float
    """When its share will have paid for all that it used."""
    last_at: float


_NO_USE: Final = _Use(-math.inf, -math.inf)


class Turns(Generic[SourceT]):
    """Datagrams that wait, by address and sender. What goes beyond a bound is dropped, as a full
    socket would: QUIC sends it again, and less (RFC 9002, section 7). Times in seconds."""

    def __init__(self, max_bytes_each: int, max_bytes: int, share: Share) -> None:
        """Bounds of one sender's datagrams, and of all together; of one address a quarter of all,
        or as much as of one sender."""
        self._max_bytes_each = max_bytes_each
        self._max_bytes = max_bytes
        self._share = share
        self._ahead_s = share.burst_s / share.of_second
        self._ready: OrderedDict[str, OrderedDict[SourceT, deque[bytes]]] = OrderedDict()
        self._resting: dict[str, OrderedDict[SourceT, deque[bytes]]] = {}
        self._rests: list[tuple[float, str]] = []
        """When each of those that rest has its turn again: a heap."""
        self._uses: OrderedDict[str, _Use] = OrderedDict()
        """Of each address, the longest unused first."""
        self._bytes_each: dict[SourceT, int] = {}
        self._bytes_of: dict[str, int] = {}
        """By address."""
        self.num_bytes = 0
        """Memory of all that wait."""

    def put(self, address: str, source: SourceT, data: bytes) -> bool:
        """Have a datagram of this sender wait; False if it was dropped."""
        size = len(data) + _ENTRY_BYTES
        held = self._bytes_each.get(source, 0) + size
        of_address = self._bytes_of.get(address, 0) + size
        if (
            held > self._max_bytes_each
            or of_address > max(self._max_bytes_each, self._max_bytes // _ADDRESS_PART)
            or self.num_bytes + size > self._max_bytes
        ):
            return False
        self._bytes_of[address] = of_address
        queues = self._resting.get(address)
        if queues is None:
            queues = self._ready.setdefault(address, OrderedDict())
        queues.setdefault(source, deque()).append(data)
        self._bytes_each[source] = held
        self.num_bytes += size
        return True

    def may_pass(self, address: str, now: float) -> bool:
        """Whether a datagram from there need not wait: none does before it, and it has time
        left."""
        waits = address in self._resting or address in self._ready
        return not waits and (self._free_at(address) <= now or self._is_alone(address, now))

    def take(self, now: float) -> tuple[str, SourceT, bytes] | None:
        """The next datagram, its address and its sender, who are the last to be asked again; None
        if none waits but of addresses that rest."""
        while self._rests and self._rests[0][0] <= now:
            _, address = heapq.heappop(self._rests)
            self._ready[address] = self._resting.pop(address)
        while self._ready:
            address, queues = self._ready.popitem(last=False)
            free_at = self._free_at(address)
            if free_at > now and not self._is_alone(address, now):
                self._resting[address] = queues
                heapq.heappush(self._rests, (free_at, address))
                continue
            source, data = self._first(address, queues)
            if queues:
                self._ready[address] = queues
            return address, source, data
        return None

    def spend(self, address: str, seconds: float, now: float) -> None:
        """Its datagrams took so much of the loop's time."""
        use = self._uses.pop(address, _NO_USE)
        # Whoever was alone took what he liked, and owes no more than anybody may.
        paid_at = min(max(use.paid_at, now), now + self._ahead_s)
        self._uses[address] = _Use(paid_at + seconds / self._share.of_second, now)
        if len(self._uses) > MAX_ADDRESSES:
            self._uses.popitem(last=False)

    def next_at(self) -> float | None:
        """When the first of those that rest has its turn; None if none does."""
        return self._rests[0][0] if self._rests else None

    def _free_at(self, address: str) -> float:
        return self._uses.get(address, _NO_USE).paid_at - self._ahead_s

    def _is_alone(self, address: str, now: float) -> bool:
        others = (use.last_at for other, use in reversed(self._uses.items()) if other != address)
        return now - next(others, -math.inf) > MEMORY_S

    def _first(
        self, address: str, queues: OrderedDict[SourceT, deque[bytes]]
    ) -> tuple[SourceT, bytes]:
        source, queue = next(iter(queues.items()))
        data = queue.popleft()
        size = len(data) + _ENTRY_BYTES
        self.num_bytes -= size
        self._bytes_each[source] -= size
        self._bytes_of[address] -= size
        if not self._bytes_of[address]:
            del self._bytes_of[address]
        if queue:
            queues.move_to_end(source)
        else:
            del queues[source], self._bytes_each[source]
        return source, data
