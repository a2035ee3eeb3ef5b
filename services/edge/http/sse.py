"""Server-sent events (WHATWG HTML, section 9.2), and how far a client has read a reply (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from outrider.errors import InvalidRequestError

COMMENT: Final = b": still here\n"
"""Keeps proxies and clients from closing a silent stream; readers of events ignore it. Without a
blank line, which would end an event: some clients make an event without data of it, once they have
had the id of another."""
_POSITION: Final = re.compile(r"(\d{1,9})-(\d{1,9})(e?)(?:@(\d{4}-\d\d-\d\d))?")
_MAX_ID_CHARS: Final = 1024


def event(data: bytes, *, name: str = "", event_id: str = "") -> bytes:
    """One event. `data` is JSON on one line."""
    head = f"id: {event_id}\n" if event_id else ""
    if name:
        head += f"event: {name}\n"
    return head.encode() + b"data: " + data + b"\n\n"


class Position(NamedTuple):
    """How much of one chat's reply a client has."""

    num_tokens: int = 0
    num_chars: int = 0
    """Code points."""
    has_ended: bool = False
    """Whether the client has its end too: what was held back until then, and why it ended."""
    template_date: str = ""
    """The date that the chat's template showed, YYYY-MM-DD; empty: it shows none."""


def beginning_of(position: Position) -> Position:
    """Position in the same chat of a client that has nothing of it but its date."""
    return Position(template_date=position.template_date)


def event_id(positions: Iterable[Position]) -> str:
    """Id of an event: what the client has once it has read the event. For each chat tokens and code
    points, with an e if it has the end, and the date in its prompt: `12-57,3-10e@2026-11-29`."""
    return ",".join(
        f"{it.num_tokens}-{it.num_chars}{'e' if it.has_ended else ''}"
        f"{'@' if it.template_date else ''}{it.template_date}"
        for it in positions
    )


def positions(last_event_id: str, num_chats: int) -> tuple[Position, ...]:
    """Position of the client in each reply, from its Last-Event-ID; the beginning for "". Raises
    InvalidRequestError."""
    if not last_event_id:
        return (Position(),) * num_chats
    found = [_POSITION.fullmatch(part) for part in last_event_id[:_MAX_ID_CHARS].split(",")]
    if len(found) != num_chats or not all(found):
        raise InvalidRequestError(
            "Last-Event-ID is no id of this reply's event stream; send the id of the last event "
            "that came, or leave it out to get the whole reply"
        )
    return tuple(
        Position(int(it[1]), int(it[2]), has_ended=bool(it[3]), template_date=it[4] or "")
        for it in found
        if it is not None
    )
