"""TLS session tickets that clients may come back with, each once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Ticket(Protocol):
    """aioquic.tls.SessionTicket, as far as it matters here."""

    @property
    def ticket(self) -> bytes: ...


TicketT = TypeVar("TicketT", bound=Ticket)


class TicketStore(Generic[TicketT]):
    """Tickets by their label. One is good for a single connection, so that a recorded first flight
    finds none when it is sent again (RFC 8446, section 8.1). That holds in this process only, so
    what comes in 0-RTT may be a copy all the same: before the handshake is complete it has no
    side effects."""

    def __init__(self, max_tickets: int, max_age_s: float, clock: Callable[[], float]) -> None:
        """Past `max_tickets` the oldest go. `clock` in seconds."""
        self._max_tickets = max_tickets
        self._max_age_s = max_age_s
        self._clock = clock
        self._tickets: OrderedDict[bytes, tuple[float, TicketT]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: TicketT) -> None:
        """A ticket was issued."""
        self._tickets[ticket.ticket] = self._clock() + self._max_age_s, ticket
        while len(self._tickets) > self._max_tickets:
            self._tickets.popitem(last=False)

    def take(self, label: bytes) -> TicketT | None:
        """The ticket of this label, gone from now on; None if there is none, or not any more."""
        expires_at, ticket = self._tickets.pop(label, (0.0, None))
        return ticket if expires_at > self._clock() else None
