"""Which datagrams (QUIC) or connections (TCP) are processed next: round robin over address
prefixes, and within a prefix over senders. While others are active, no prefix takes more than its
share of the event loop's time (pure).

The share is enforced by the virtual scheduling form of the generic cell rate algorithm (GCRA, ITU-T
I.371, annex A): one number per prefix, the theoretical arrival time (TAT) at which its share will
have covered its use. A prefix whose TAT is more than a burst ahead is held back until it is not.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from outrider.lru_map import LruMap

SourceT = TypeVar("SourceT", bound=Hashable)

ACTIVE_S: Final = 10.0
"""A prefix counts as there for so long after it last used the loop."""
MAX_ADDRESSES: Final = 4096
"""Most prefixes whose use is remembered; beyond, the longest unused are forgotten."""
_ADDRESS_FRACTION: Final = 4
"""A prefix may queue a quarter of all bytes, whatever its number of senders: while it is held back,
its datagrams would otherwise leave no room for others."""
ENTRY_BYTES: Final = 128
"""Memory of one entry of the queue besides its data."""


@dataclass(frozen=True, slots=True)
class LoopShare:
    """Share of the event loop's time for one address prefix while others are active."""

    rate: float = 0.25
    """Seconds per second, on average."""
    burst_s: float = 0.5
    """Seconds that may be used at once after a pause."""


class _LoopUse(NamedTuple):
    """Use by one prefix."""

    tat: float
    """When its share will have covered all that it used."""
    last_at: float


_UNUSED: Final = _LoopUse(-math.inf, -math.inf)


class LoopUses:
    """Recent use of the event loop's time by each address prefix, over all listeners. Times in
    seconds."""

    def __init__(self, share: LoopShare) -> None:
        self._share = share
        self._burst = share.burst_s / share.rate
        """How far ahead a TAT may be, seconds."""
        self._uses: LruMap[str, _LoopUse] = LruMap(MAX_ADDRESSES)
        """By prefix."""

    def __len__(self) -> int:
        return len(self._uses)

    def spend(self, address: str, seconds: float, now: float) -> None:
        """Charge a prefix for time of the loop."""
        use = self._uses.peek(address) or _UNUSED
        # A prefix that was alone may have used more than its share; it owes at most a burst.
        tat = min(max(use.tat, now), now + self._burst)
        self._uses.put(address, _LoopUse(tat + seconds / self._share.rate, now))

    def free_at(self, address: str) -> float:
        """Time from which on a prefix is within its share."""
        return (self._uses.peek(address) or _UNUSED).tat - self._burst

    def may_go(self, address: str, now: float) -> bool:
        """Whether it is within its share, or the only active one."""
        return self.free_at(address) <= now or self._is_alone(address, now)

    def _is_alone(self, address: str, now: float) -> bool:
        others = (use.last_at for other, use in reversed(self._uses.items()) if other != address)
        return now - next(others, -math.inf) > ACTIVE_S


class FairQueue(Generic[SourceT]):
    """Data that waits, by address prefix and sender. What exceeds a bound is dropped, as a full
    socket would: QUIC sends it again, at a lower rate (RFC 9002, section 7). Times in seconds."""

    def __init__(self, max_bytes_per_source: int, max_bytes: int, uses: LoopUses) -> None:
        """Bounds of one sender's data, and of all together. One prefix may take a quarter of all,
        and at least as much as one sender."""
        self._max_bytes_per_source = max_bytes_per_source
        self._max_bytes = max_bytes
        self._max_bytes_per_address = max(max_bytes_per_source, max_bytes // _ADDRESS_FRACTION)
        self.uses = uses
        self._ready: OrderedDict[str, OrderedDict[SourceT, deque[bytes]]] = OrderedDict()
        self._held_back: dict[str, OrderedDict[SourceT, deque[bytes]]] = {}
        self._releases: list[tuple[float, str]] = []
        """When each prefix that is held back is released: a heap."""
        self._bytes_by_source: dict[tuple[str, SourceT], int] = {}
        """By prefix and sender: what one sender sends may count for several prefixes."""
        self._bytes_by_address: dict[str, int] = {}
        self.num_bytes = 0
        """Memory of all that wait."""

    def put(self, address: str, source: SourceT, data: bytes) -> bool:
        """Queue what this sender sent; False if it was dropped."""
        size = len(data) + ENTRY_BYTES
        of_source = self._bytes_by_source.get((address, source), 0) + size
        of_address = self._bytes_by_address.get(address, 0) + size
        if (
            of_source > self._max_bytes_per_source
            or of_address > self._max_bytes_per_address
            or self.num_bytes + size > self._max_bytes
        ):
            return False
        queues = self._held_back.get(address)
        if queues is None:
            queues = self._ready.setdefault(address, OrderedDict())
        queues.setdefault(source, deque()).append(data)
        self._bytes_by_source[address, source] = of_source
        self._bytes_by_address[address] = of_address
        self.num_bytes += size
        return True

    def may_pass(self, address: str, now: float) -> bool:
        """Whether data from there need not be queued: none is queued before it, and the prefix is
        within its share."""
        waits = address in self._held_back or address in self._ready
        return not waits and self.uses.may_go(address, now)

    def take(self, now: float) -> tuple[str, SourceT, bytes] | None:
        """The next data with its prefix and sender, which both move to the end of their queues;
        None if only prefixes that are held back have any."""
        while self._releases and self._releases[0][0] <= now:
            _, address = heapq.heappop(self._releases)
            self._ready[address] = self._held_back.pop(address)
        while self._ready:
            address, queues = self._ready.popitem(last=False)
            if not self.uses.may_go(address, now):
                self._held_back[address] = queues
                heapq.heappush(self._releases, (self.uses.free_at(address), address))
                continue
            source, data = self._take_first(address, queues)
            if queues:
                self._ready[address] = queues
            return address, source, data
        return None

    def next_release(self) -> float | None:
        """When the first prefix that is held back is released; None if none is."""
        return self._releases[0][0] if self._releases else None

    def _take_first(
        self, address: str, queues: OrderedDict[SourceT, deque[bytes]]
    ) -> tuple[SourceT, bytes]:
        source, queue = next(iter(queues.items()))
        data = queue.popleft()
        size = len(data) + ENTRY_BYTES
        self.num_bytes -= size
        self._bytes_by_source[address, source] -= size
        self._bytes_by_address[address] -= size
        if not self._bytes_by_address[address]:
            del self._bytes_by_address[address]
        if queue:
            queues.move_to_end(source)
        else:
            del queues[source], self._bytes_by_source[address, source]
        return source, data
