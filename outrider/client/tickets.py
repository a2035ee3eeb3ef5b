"""TLS session tickets: with one, a client that was here before sends its first frames in 0-RTT."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog
from aioquic.tls import CipherSuite, SessionTicket

from outrider.durable_files import write_atomic
from outrider.lru_map import LruMap

log = structlog.get_logger()

MAX_EDGES = 64


class SessionTickets:
    """The newest ticket of each edge that was trusted by its certificate, in memory and, if wanted,
    in a file for the next process.

    A ticket is used only once: a second use would let an observer of the network link two
    connections to the same client (RFC 8446, appendix C.4). The file holds secrets; only its owner
    can read it.
    """

    def __init__(self, file: Path | None = None) -> None:
        """A file that cannot be read, or holds no tickets, counts as empty, and one that cannot be
        written stays as it is: they only save time."""
        self._file = file
        self._tickets: LruMap[str, SessionTicket] = LruMap(MAX_EDGES)
        for edge, ticket in ({} if file is None else _load(file)).items():
            self._tickets.put(edge, ticket)

    def put(self, edge: str, ticket: SessionTicket) -> None:
        """Keep a ticket from `edge`, a name that includes how the edge was trusted. If there are
        too many edges, the oldest edge's ticket is dropped."""
        self._tickets.put(edge, ticket)
        self._save()

    def take(self, edge: str) -> SessionTicket | None:
        """Remove and return a ticket for `edge`; None if there is none that is still valid."""
        ticket = self._tickets.pop(edge)
        if ticket is None:
            return None
        self._save()
        return ticket if ticket.is_valid else None

    def _save(self) -> None:
        if self._file is None:
            return
        text = json.dumps({edge: _to_json(ticket) for edge, ticket in self._tickets.items()})
        try:
            write_atomic(self._file, text.encode(), is_durable=False)
        except OSError as error:
            log.warning("session_tickets_not_kept", file=str(self._file), error=str(error))


def _load(file: Path) -> dict[str, SessionTicket]:
    try:
        tickets = json.loads(file.read_text(encoding="utf-8"))
        return {str(edge): _from_json(fields) for edge, fields in tickets.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _to_json(ticket: SessionTicket) -> dict[str, Any]:
    fields = asdict(ticket)
    for name in ("resumption_secret", "ticket"):
        fields[name] = _text(fields[name])
    for name in ("not_valid_after", "not_valid_before"):
        fields[name] = fields[name].isoformat()
    fields["cipher_suite"] = int(ticket.cipher_suite)
    fields["other_extensions"] = [[kind, _text(data)] for kind, data in ticket.other_extensions]
    return fields


def _from_json(fields: dict[str, Any]) -> SessionTicket:
    return SessionTicket(
        age_add=int(fields["age_add"]),
        cipher_suite=CipherSuite(fields["cipher_suite"]),
        not_valid_after=datetime.fromisoformat(fields["not_valid_after"]),
        not_valid_before=datetime.fromisoformat(fields["not_valid_before"]),
        resumption_secret=base64.b64decode(fields["resumption_secret"]),
        server_name=str(fields["server_name"]),
        ticket=base64.b64decode(fields["ticket"]),
        max_early_data_size=fields["max_early_data_size"],
        other_extensions=[
            (int(kind), base64.b64decode(data)) for kind, data in fields["other_extensions"]
        ],
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
