"""Session tickets: newest first, once, and from one process to the next."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aioquic.tls import CipherSuite, SessionTicket

from outrider.client.tickets import MAX_EDGES, SessionTickets


def ticket(label: bytes = b"label", *, valid_s: float = 3600) -> SessionTicket:
    now = datetime.now(UTC)
    return SessionTicket(
        age_add=7,
        cipher_suite=CipherSuite.AES_256_GCM_SHA384,
        not_valid_after=now + timedelta(seconds=valid_s),
        not_valid_before=now - timedelta(seconds=10),
        resumption_secret=bytes(range(48)),
        server_name="edge",
        ticket=label,
        max_early_data_size=0xFFFFFFFF,
        other_extensions=[(57, b"\x00\xff")],
    )


def test_a_ticket_is_used_once() -> None:
    tickets = SessionTickets()
    tickets.put("a", ticket(b"1"))
    tickets.put("a", ticket(b"2"))
    taken = tickets.take("a")
    assert taken is not None
    assert taken.ticket == b"2"
    assert tickets.take("a") is None
    assert tickets.take("b") is None


def test_an_expired_ticket_is_none() -> None:
    tickets = SessionTickets()
    tickets.put("a", ticket(valid_s=-1))
    assert tickets.take("a") is None


def test_the_next_process_finds_them_and_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "state" / "tickets.json"
    kept = ticket()
    SessionTickets(file).put("a", kept)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert SessionTickets(file).take("a") == kept
    assert SessionTickets(file).take("a") is None, "used"
    assert [entry.name for entry in file.parent.iterdir()] == ["tickets.json"]


@pytest.mark.parametrize("content", ["", "no json", "[]", "{}", '{"a": 1}', '{"a": {}}'])
def test_a_file_that_holds_none_is_empty(content: str, tmp_path: Path) -> None:
    file = tmp_path / "tickets.json"
    file.write_text(content)
    assert SessionTickets(file).take("a") is None


def test_a_file_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    tickets = SessionTickets(tmp_path / "file" / "tickets.json")
    tickets.put("a", ticket())
    assert tickets.take("a") is not None


def test_their_number_is_bounded() -> None:
    tickets = SessionTickets()
    for number in range(MAX_EDGES + 3):
        tickets.put(str(number), ticket())
    assert tickets.take("2") is None
    assert tickets.take("3") is not None
