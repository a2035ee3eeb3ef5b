"""A reply as a sequence of parts: text, reasoning before it, calls of tools (pure).

Every API gets a reply this way: for each part, when it begins, grows and ends (Anthropic's content
blocks and the items of OpenAI's Responses are such parts; OpenAI's chats join them by kind). A
PartReader makes parts out of text. A ReplyContent reads a chat's commits and separates out what the
client does not have yet. Where calls and reasoning begin is known only after reading everything
before them, so a chat with such parts is replayed from its beginning even for a client that has
some of it, and that part is read and left out. The same text gives the same parts, however it was
cut.
"""

from __future__ import annotations

from collections.abc import Callable
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
from outrider.reply_parsing.parser import ReplyParser
from outrider.session.client import Accepted, Committed
from outrider.session.types import TokenLogprobs
from services.edge.http.sse import Position


class ReplyTextParser(Protocol):
    """Reads what a model writes; outrider.reply_parsing has the real ones."""

    def push(self, text: str) -> list[ReplyEvent]:
        """Parse more text; returns its events."""
        ...

    def finish(self) -> list[ReplyEvent]:
        """The reply is over: what was held back."""
        ...


class PlainText:
    """Parses replies in which all is text; a ReplyTextParser."""

    def push(self, text: str) -> list[ReplyEvent]:
        """Parse more text; see ReplyTextParser.push."""
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[ReplyEvent]:
        """Return nothing, because plain text is never held back; see ReplyTextParser.finish."""
        return []


def parser_of(accepted: Accepted) -> ReplyTextParser:
    """The parser for a chat's reply."""
    if accepted.reply_format is None:
        return PlainText()
    return ReplyParser(accepted.reply_format, accepted.request_id)


class PartKind(Enum):
    """Kind of a reply's part."""

    TEXT = auto()
    REASONING = auto()
    CALL = auto()


@dataclass(slots=True)
class Part:
    """One part."""

    index: int
    """0 for the first."""
    kind: PartKind
    call_index: int = 0
    """Number of a call in the reply, from 0."""
    call_id: str = ""
    name: str = ""
    """Name of the tool that a call names."""
    pieces: list[str] = field(default_factory=list)
    """Pieces of its text, or of a call's arguments."""
    is_whole: bool = True
    """False: a call whose arguments are not a whole JSON object."""
    is_cut_off: bool = False
    """Whether the reply reached its limit of tokens, or its deadline, within it."""
    source: str = ""
    """Source text of a call that is not whole."""

    @property
    def text(self) -> str:
        """Its text; of a call its arguments, JSON."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class PartBegun:
    """A part begins; it is still empty."""

    part: Part


@dataclass(frozen=True, slots=True)
class PartGrew:
    """More of it came."""

    part: Part
    text: str


@dataclass(frozen=True, slots=True)
class PartEnded:
    """A part ends."""

    part: Part


PartEvent: TypeAlias = PartBegun | PartGrew | PartEnded


class PartReader:
    """The parts of one reply. Kept text is bounded by the model's context."""

    def __init__(self, parser: ReplyTextParser, *, keeps: bool = True) -> None:
        """`keeps`: keep the texts of parts for later; otherwise plain text is not kept."""
        self._parser = parser
        self._keeps = keeps or not isinstance(parser, PlainText)
        self._raw: list[str] = []
        self._open: Part | None = None
        self._call_begin = 0
        self.parts: list[Part] = []
        """Parts that have begun."""

    @property
    def is_plain(self) -> bool:
        """Whether all of the reply is text."""
        return isinstance(self._parser, PlainText)

    @property
    def has_calls(self) -> bool:
        """Whether a tool is called, and the call is whole."""
        return any(it.kind is PartKind.CALL and it.is_whole for it in self.parts)

    def push(self, text: str) -> list[PartEvent]:
        """Parse more of the reply."""
        if not self.is_plain:
            self._raw.append(text)
        return [made for event in self._parser.push(text) for made in self._read(event)]

    def finish(self, *, is_cut_off: bool = False) -> list[PartEvent]:
        """The reply is over; `is_cut_off`: it reached its limit of tokens, or its deadline."""
        made = [it for event in self._parser.finish() for it in self._read(event)]
        made += self._end()
        if made and isinstance(made[-1], PartEnded):
            made[-1].part.is_cut_off = is_cut_off
        return made

    def _read(self, event: ReplyEvent) -> list[PartEvent]:
        match event:
            case ContentDelta(text):
                return self._grow(PartKind.TEXT, text)
            case ReasoningDelta(text):
                return self._grow(PartKind.REASONING, text)
            case ToolCallBegun(index, call_id, name, begin):
                self._call_begin = begin
                ended = self._end()
                begun = self._begin(PartKind.CALL)
                part = self.parts[-1]
                part.call_index, part.call_id, part.name = index, call_id, name
                return ended + begun
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
        if self._keeps:
            part.pieces.append(text)
        return [*made, PartGrew(part, text)]

    def _begin(self, kind: PartKind) -> list[PartEvent]:
        part = Part(len(self.parts), kind)
        self.parts.append(part)
        self._open = part
        return [PartBegun(part)]

    def _end(self) -> list[PartEvent]:
        ended, self._open = self._open, None
        return [] if ended is None else [PartEnded(ended)]


@dataclass(slots=True)
class Growth:
    """New parts from a commit."""

    known: list[PartEvent]
    """Changes for text that the client already has."""
    new: list[PartEvent]
    is_told_again: bool
    """Whether the client has text that follows the commit before this one."""
    num_new_chars: int
    """Code points that the client does not have yet."""
    logprobs: tuple[TokenLogprobs, ...]
    """Log probabilities of tokens that the client does not have yet, as far as the others are
    counted."""


class ReplyContent:
    """Content of one chat's reply."""

    def __init__(
        self,
        had: Position,
        *,
        from_start: bool = False,
        keeps: bool = True,
        new_parser: Callable[[Accepted], ReplyTextParser] = parser_of,
    ) -> None:
        """`had`: what the client has of the reply from an earlier request; `from_start`: the chat
        repeats that part; `keeps`: see PartReader."""
        self.position = had
        """How much the client has once it has what was returned last."""
        self.reader = PartReader(PlainText(), keeps=keeps)
        self._num_read = 0 if from_start else had.num_chars
        """Code points of the reply received so far, or not repeated."""
        self._keeps = keeps
        self._new_parser = new_parser
        self._is_accepted = False

    def accepted(self, event: Accepted) -> None:
        """The chat was accepted: the parser for its reply is now known."""
        if not self._is_accepted:
            self._is_accepted = True
            self.reader = PartReader(self._new_parser(event), keeps=self._keeps)
            self.position = self.position._replace(template_date=event.template_date)

    def take_text(self, commit: Committed) -> str | None:
        """The new text of a commit, for the frequent case of a plain reply that is streamed in
        order. None: call `take` instead."""
        had, text = self.position, commit.text
        if self._keeps or commit.logprobs or self._num_read < had.num_chars:
            return None
        if not self.reader.is_plain:
            return None
        self._num_read += len(text)
        num_tokens = max(commit.upto, had.num_tokens)
        self.position = had._replace(num_tokens=num_tokens, num_chars=self._num_read)
        return text

    def take(self, commit: Committed) -> Growth:
        """Read a commit."""
        num_known = max(0, self.position.num_chars - self._num_read)
        self._num_read += len(commit.text)
        num_tokens = max(0, commit.upto - self.position.num_tokens)
        self.position = self.position._replace(
            num_tokens=max(commit.upto, self.position.num_tokens),
            num_chars=max(self._num_read, self.position.num_chars),
        )
        known, new = commit.text[:num_known], commit.text[num_known:]
        return Growth(
            self.reader.push(known) if known else [],
            self.reader.push(new),
            bool(num_known),
            len(new),
            commit.logprobs[max(0, len(commit.logprobs) - num_tokens) :],
        )

    def finish(self, *, is_cut_off: bool = False) -> list[PartEvent]:
        """The chat has ended: returns parts that were held back. See PartReader.finish."""
        return self.reader.finish(is_cut_off=is_cut_off)
