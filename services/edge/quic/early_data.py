"""TLS early data, 0-RTT: tickets that clients may come back with, and what they send before the
handshake is complete (pure)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from outrider.lru_map import LruMap
from services.edge.limits.listener import MemoryBudget

STREAM_BYTES: Final = 512
"""Memory of a kept stream besides its data."""


class Ticket(Protocol):
    """The part of aioquic.tls.SessionTicket that is used here."""

    @property
    def ticket(self) -> bytes: ...


TicketT = TypeVar("TicketT", bound=Ticket)


class TicketStore(Generic[TicketT]):
    """Tickets by their label. Each is good for one connection, so a recorded first flight finds
    none when it is replayed (RFC 8446, section 8.1). That holds within this process only: elsewhere
    0-RTT data may be a replay all the same, so it has no side effects before the handshake is
    complete."""

    def __init__(self, max_tickets: int, max_age_s: float, clock: Callable[[], float]) -> None:
        """Beyond `max_tickets` the oldest are dropped. `clock` in seconds."""
        self._max_age_s = max_age_s
        self._clock = clock
        self._tickets: LruMap[bytes, tuple[float, TicketT]] = LruMap(max_tickets)

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: TicketT) -> None:
        """A ticket was issued."""
        self._tickets.put(ticket.ticket, (self._clock() + self._max_age_s, ticket))

    def take(self, label: bytes) -> TicketT | None:
        """Remove and return the ticket of this label; None if there is none, or it has expired."""
        expires_at, ticket = self._tickets.pop(label) or (0.0, None)
        return ticket if expires_at > self._clock() else None


class EarlyStreams:
    """0-RTT data of one connection, by stream in the order in which they began. It waits for the
    end of the handshake, since it may be a replay (RFC 8470); to keep a frame takes constant
    time."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._streams: dict[int, tuple[bytearray, bool]] = {}

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._streams

    def keep(self, stream_id: int, data: bytes, end_stream: bool) -> bool:
        """Append data to a stream; False if there is no room."""
        kept = self._streams.get(stream_id)
        if not self._budget.take(len(data) + (STREAM_BYTES if kept is None else 0)):
            return False
        held = bytearray() if kept is None else kept[0]
        held += data
        self._streams[stream_id] = held, end_stream
        return True

    def drop(self, stream_id: int) -> None:
        """The client reset a stream."""
        if (kept := self._streams.pop(stream_id, None)) is not None:
            self._budget.give_back(len(kept[0]) + STREAM_BYTES)

    def take(self) -> list[tuple[int, bytes, bool]]:
        """Remove and return everything: stream, bytes, and whether the stream has ended."""
        streams, self._streams = self._streams, {}
        self._budget.clear()
        return [(number, bytes(data), ended) for number, (data, ended) in streams.items()]
