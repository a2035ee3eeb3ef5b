"""Whose datagram is next: every sender in turn, so that who sends a book does not hold up those who
ask a question (pure)."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

SourceT = TypeVar("SourceT", bound=Hashable)

_ENTRY_BYTES: Final = 128
"""Of one datagram, besides its data."""


class Turns(Generic[SourceT]):
    """Datagrams that wait, by sender, one of each taken in turn. What goes beyond a bound is
    dropped, as a full socket would: QUIC sends it again, and less (RFC 9002, section 7)."""

    def __init__(self, max_bytes_each: int, max_bytes: int) -> None:
        """Bounds of one sender's datagrams, and of all together."""
        self._max_bytes_each = max_bytes_each
        self._max_bytes = max_bytes
        self._queues: OrderedDict[SourceT, deque[bytes]] = OrderedDict()
        self._bytes_each: dict[SourceT, int] = {}
        self.num_bytes = 0
        """Memory of all that wait."""

    def put(self, source: SourceT, data: bytes) -> bool:
        """Have a datagram wait; False if it was dropped."""
        size = len(data) + _ENTRY_BYTES
        held = self._bytes_each.get(source, 0) + size
        if held > self._max_bytes_each or self.num_bytes + size > self._max_bytes:
            return False
        self._queues.setdefault(source, deque()).append(data)
        self._bytes_each[source] = held
        self.num_bytes += size
        return True

    def take(self) -> tuple[SourceT, bytes] | None:
        """The next datagram and its sender, who is the last to be asked again; None if none
        waits."""
        if not self._queues:
            return None
        source, queue = next(iter(self._queues.items()))
        data = queue.popleft()
        size = len(data) + _ENTRY_BYTES
        self.num_bytes -= size
        self._bytes_each[source] -= size
        if queue:
            self._queues.move_to_end(source)
        else:
            del self._queues[source], self._bytes_each[source]
        return source, data
