"""What edges show to have the commits of a session sent to themselves. Pure: no clock, no
randomness of its own.

A ticket is drawn at random by the replica for one session and one edge, and told to nobody but the
session's router, which passes it to that edge. It is good once, for a while, and as long as its
session lives; so there are at most as many as sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

TICKET_BYTES: Final = 16
TICKET_LIFETIME_S: Final = 10.0

SessionT = TypeVar("SessionT")


class TicketFault(StrEnum):
    """Why a ticket is not taken."""

    UNKNOWN = "unknown"
    """It is wrong, was used before, or its session is over."""
    FOREIGN = "foreign"
    """It is another edge's, which keeps it."""
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class _Ticket(Generic[SessionT]):
    session: SessionT
    edge: str
    expires_at: float


class TicketTable(Generic[SessionT]):
    """The tickets that are out."""

    def __init__(self, draw: Callable[[int], bytes]) -> None:
        """`draw` makes so many random bytes that nobody can guess."""
        self._draw = draw
        self._tickets: dict[bytes, _Ticket[SessionT]] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def issue(self, session: SessionT, edge: str, now: float) -> bytes:
        """A ticket with which this edge may attach the session."""
        ticket = self._draw(TICKET_BYTES)
        self._tickets[ticket] = _Ticket(session, edge, now + TICKET_LIFETIME_S)
        return ticket

    def redeem(self, ticket: bytes, edge: str, now: float) -> SessionT | TicketFault:
        """The session that it is for, or why not; it is good no more."""
        found = self._tickets.get(ticket)
        if found is None:
            return TicketFault.UNKNOWN
        if found.edge != edge:
            return TicketFault.FOREIGN
        del self._tickets[ticket]
        return TicketFault.EXPIRED if now >= found.expires_at else found.session

    def withdraw(self, ticket: bytes) -> None:
        """Its session is over."""
        self._tickets.pop(ticket, None)
