"""The edge's tickets: each once, for a time, within bounds."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.testing import FakeClock
from services.edge.quic.tickets import TicketStore


@dataclass(frozen=True)
class Ticket:
    ticket: bytes


def test_a_ticket_is_good_for_one_connection() -> None:
    store = TicketStore[Ticket](10, 60.0, FakeClock())
    store.add(Ticket(b"a"))
    assert store.take(b"a") == Ticket(b"a")
    assert store.take(b"a") is None


def test_an_old_ticket_is_good_for_none() -> None:
    clock = FakeClock()
    store = TicketStore[Ticket](10, 60.0, clock)
    store.add(Ticket(b"a"))
    store.add(Ticket(b"b"))
    clock.advance(59.9)
    assert store.take(b"a") is not None
    clock.advance(0.1)
    assert store.take(b"b") is None


def test_the_oldest_go_when_there_are_too_many() -> None:
    store = TicketStore[Ticket](2, 60.0, FakeClock())
    for label in (b"a", b"b", b"c"):
        store.add(Ticket(label))
    assert len(store) == 2
    assert store.take(b"a") is None
    assert store.take(b"b") is not None
