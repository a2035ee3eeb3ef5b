"""A parser of replies in which calls are written as [name]{...}[/], for tests of what is made of
calls. The real ones are tested where they are."""

from __future__ import annotations

import re
from typing import Any

from outrider.reply_parsing.events import (
    ArgumentsDelta,
    ContentDelta,
    ReasoningDelta,
    ReplyEvent,
    ToolCallBegun,
    ToolCallEnded,
)
from outrider.session.client import Accepted
from services.edge.http.sse import Position
from services.edge.http.translation import PartWriter, Shape
from tests.edge.http.asking import ending

_PIECE = re.compile(r"\((?P<thought>[^)]*)\)|\[(?P<name>\w+)\](?P<arguments>.*?)(?P<end>\[/\]|$)")


class BracketParser:
    """(a thought), then text, then calls. It reads only what is whole, at the end."""

    def __init__(self, accepted: Accepted) -> None:
        self._text = ""
        self._num_told = 0

    def push(self, text: str) -> list[ReplyEvent]:
        """Text before the first bracket is told at once."""
        self._text += text
        if "[" in self._text or "(" in self._text:
            return []
        self._num_told = len(self._text)
        return [ContentDelta(text)]

    def finish(self) -> list[ReplyEvent]:
        """All that has brackets."""
        at = self._num_told
        events: list[ReplyEvent] = []
        index = 0
        for piece in _PIECE.finditer(self._text, at):
            if piece.start() > at:
                events.append(ContentDelta(self._text[at : piece.start()]))
            at = piece.end()
            if piece["thought"] is not None:
                events.append(ReasoningDelta(piece["thought"]))
                continue
            arguments = piece["arguments"]
            events.append(ToolCallBegun(index, f"call_{index}", piece["name"], piece.start()))
            events += [ArgumentsDelta(index, it) for it in (arguments[:3], arguments[3:]) if it]
            events.append(ToolCallEnded(index, bool(piece["end"]), piece.end()))
            index += 1
        if at < len(self._text):
            events.append(ContentDelta(self._text[at:]))
        return events


def with_calls(shape: Shape, *, streamed: bool) -> PartWriter:
    """Writes replies that this parser reads."""
    return PartWriter(
        shape, Position(), is_streamed=streamed, has_ids=False, new_parser=BracketParser
    )


def written(writer: PartWriter, *texts: str, **usage: Any) -> bytes:
    """All that is sent of a reply of these texts."""
    sent = b"".join(writer.take(0, event) for event in ending(*texts, **usage))
    return sent + writer.whole()
