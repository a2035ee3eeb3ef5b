"""A reply as a sequence of parts: text, what the model thought before it, calls of tools (pure).

APIs that stream such parts (Anthropic's content blocks, the items of OpenAI's Responses) tell of
each when it begins, grows and ends. A PartReader makes these out of the reply's committed text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol, TypeAlias

from outrider.reply_parsing.events import (
    ArgumentsDelta,
    ContentDelta,
    ReasoningDelta,
    ReplyEvent,
    ToolCallBegun,
    ToolCallEnded,
)
from services.edge.session.events import Accepted


class ReplyTextParser(Protocol):
    """Reads what a model writes; outrider.reply_parsing has the real ones."""

    def push(self, text: str) -> list[ReplyEvent]:
        """What this text brought."""
        ...

    def finish(self) -> list[ReplyEvent]:
        """The reply is over: what was held back."""
        ...


class PlainText:
    """Reads replies in which all is text; a ReplyTextParser."""

    def push(self, text: str) -> list[ReplyEvent]:
        """As ReplyTextParser.push."""
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[ReplyEvent]:
        """As ReplyTextParser.finish."""
        return []


def parser_of(accepted: Accepted) -> ReplyTextParser:
    """What the reply of a chat is to be read with. No chat has tools yet, so each is plain text."""
    return PlainText()


class PartKind(Enum):
    """What a part of a reply is."""

    TEXT = auto()
    REASONING = auto()
    CALL = auto()


@dataclass(slots=True)
class Part:
    """One part."""

    index: int
    """0 for the first."""
    kind: PartKind
    call_id: str = ""
    name: str = ""
    """Of the tool that it calls."""
    pieces: list[str] = field(default_factory=list)
    """Of its text, or of a call's arguments."""
    is_whole: bool = True
    """False: a call whose arguments are no whole JSON object."""
    source: str = ""
    """Of a call that is not whole: what the model wrote."""

    @property
    def text(self) -> str:
        """All of it; of a call its arguments, JSON."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class PartBegun:
    """Nothing of it has come yet."""

    part: Part


@dataclass(frozen=True, slots=True)
class PartGrew:
    """More of it came."""

    part: Part
    text: str


@dataclass(frozen=True, slots=True)
class PartEnded:
    """Nothing more of it comes."""

    part: Part


PartEvent: TypeAlias = PartBegun | PartGrew | PartEnded


class PartReader:
    """The parts of one reply. It keeps the reply's text, which the model's context bounds."""

    def __init__(self, parser: ReplyTextParser) -> None:
        self._parser = parser
        self._raw: list[str] = []
        self._open: Part | None = None
        self._call_begin = 0
        self.parts: list[Part] = []
        """Those that have begun."""

    @property
    def is_plain(self) -> bool:
        """Whether all of the reply is text."""
        return isinstance(self._parser, PlainText)

    @property
    def has_calls(self) -> bool:
        """Whether a tool is called, and the call is whole."""
        return any(it.kind is PartKind.CALL and it.is_whole for it in self.parts)

    def push(self, text: str) -> list[PartEvent]:
        """The reply goes on with this text."""
        self._raw.append(text)
        return [made for event in self._parser.push(text) for made in self._read(event)]

    def finish(self) -> list[PartEvent]:
        """The reply is over."""
        made = [it for event in self._parser.finish() for it in self._read(event)]
        return made + self._end()

    def _read(self, event: ReplyEvent) -> list[PartEvent]:
        match event:
            case ContentDelta(text):
                return self._grow(PartKind.TEXT, text)
            case ReasoningDelta(text):
                return self._grow(PartKind.REASONING, text)
            case ToolCallBegun(_, call_id, name, begin):
                self._call_begin = begin
                return self._end() + self._begin(PartKind.CALL, call_id, name)
            case ArgumentsDelta(text=text):
                return self._grow(PartKind.CALL, text)
            case ToolCallEnded(is_whole=is_whole, end=end):
                if self._open is not None and not is_whole:
                    self._open.is_whole = False
                    self._open.source = "".join(self._raw)[self._call_begin : end]
                return self._end()

    def _grow(self, kind: PartKind, text: str) -> list[PartEvent]:
        if not text:
            return []
        made: list[PartEvent] = []
        if self._open is None or self._open.kind is not kind:
            made = self._end() + self._begin(kind)
        part = self.parts[-1]
        part.pieces.append(text)
        return [*made, PartGrew(part, text)]

    def _begin(self, kind: PartKind, call_id: str = "", name: str = "") -> list[PartEvent]:
        part = Part(len(self.parts), kind, call_id, name)
        self.parts.append(part)
        self._open = part
        return [PartBegun(part)]

    def _end(self) -> list[PartEvent]:
        ended, self._open = self._open, None
        return [] if ended is None else [PartEnded(ended)]
