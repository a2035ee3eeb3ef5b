"""Tickets: good once, for a while, for one edge, while their session lives."""

from __future__ import annotations

import itertools

from services.inference.streaming.tickets import TICKET_LIFETIME_S, TicketFault, TicketTable


def table() -> TicketTable[str]:
    numbers = itertools.count()
    return TicketTable(lambda size: next(numbers).to_bytes(size, "big"))


def test_a_ticket_is_good_once() -> None:
    tickets = table()
    ticket = tickets.issue("session", "edge/us/a", 0.0)
    assert tickets.redeem(ticket, "edge/us/a", 1.0) == "session"
    assert tickets.redeem(ticket, "edge/us/a", 1.0) is TicketFault.UNKNOWN
    assert len(tickets) == 0


def test_nobody_can_use_or_spoil_anothers() -> None:
    tickets = table()
    ticket = tickets.issue("session", "edge/us/a", 0.0)
    assert tickets.redeem(ticket, "edge/us/b", 1.0) is TicketFault.FOREIGN
    assert tickets.redeem(bytes(reversed(ticket)) + b"x", "edge/us/a", 1.0) is TicketFault.UNKNOWN
    assert tickets.redeem(ticket, "edge/us/a", 1.0) == "session"


def test_it_ends_with_time_and_with_its_session() -> None:
    tickets = table()
    late, over = tickets.issue("late", "", 0.0), tickets.issue("over", "", 0.0)
    assert tickets.redeem(late, "", TICKET_LIFETIME_S) is TicketFault.EXPIRED
    tickets.withdraw(over)
    assert tickets.redeem(over, "", 0.0) is TicketFault.UNKNOWN
    assert len(tickets) == 0
