"""0-RTT: tickets are good once, for a time, within bounds; data is whole again, and bounded."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.testing import FakeClock
from services.edge.limits.listener import MemoryBudget
from services.edge.quic.early_data import STREAM_BYTES, EarlyStreams, TicketStore


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


def test_streams_come_out_whole_and_nothing_stays() -> None:
    room = MemoryBudget(10_000)
    early = EarlyStreams(room)
    for piece in (b"a", b"b", b"c"):
        assert early.keep(0, piece, False)
        assert early.keep(4, piece.upper(), piece == b"c")
    assert 4 in early and 8 not in early
    assert room.num_bytes == 6 + 2 * STREAM_BYTES
    assert early.take() == [(0, b"abc", False), (4, b"ABC", True)]
    assert room.num_bytes == 0 and early.take() == []


def test_bytes_and_streams_both_count() -> None:
    room = MemoryBudget(3 * STREAM_BYTES)
    early = EarlyStreams(room)
    assert sum(early.keep(4 * number, b"", False) for number in range(1000)) == 3
    early.drop(4)
    early.drop(400)
    assert room.num_bytes == 2 * STREAM_BYTES
    assert sum(early.keep(0, b"x", False) for _ in range(10_000)) == STREAM_BYTES


def test_a_flood_of_single_bytes_is_one_object() -> None:
    early = EarlyStreams(MemoryBudget(1 << 20))
    for _ in range(64_000):
        assert early.keep(0, b"x", False)
    assert len(early._streams) == 1
    assert early.take() == [(0, b"x" * 64_000, False)]
