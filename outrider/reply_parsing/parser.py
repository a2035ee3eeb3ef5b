"""Reads a reply of known format: while it comes, as events, or as a whole. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from outrider.reply_parsing.calls import CallParser, call_parser
from outrider.reply_parsing.events import (
    ArgumentsDelta,
    ContentDelta,
    ReasoningDelta,
    ReplyEvent,
    ToolCallBegun,
    ToolCallEnded,
)
from outrider.reply_parsing.formats import ReplyFormat
from outrider.reply_parsing.harmony import HarmonyParser
from outrider.reply_parsing.reasoning import ReasoningSplitter

MAX_CALLS: Final = 128
"""Most tool calls reported of one reply; further ones are parsed but not reported."""


class ReplyParser:
    """One reply. `push` its text as it becomes final, then `finish` once.

    The events joined are the same however the text was cut. Nothing of it is lost but markup: what
    is no call is content.
    """

    def __init__(self, reply_format: ReplyFormat, seed: str) -> None:
        """`seed`: the request's id, from which ids of calls are derived."""
        self._thoughts: ReasoningSplitter | None = None
        if reply_format.reasoning is not None:
            self._thoughts = ReasoningSplitter(
                reply_format.reasoning, begins_in_reasoning=reply_format.begins_in_reasoning
            )
        self._calls: CallParser | HarmonyParser | None = None
        if reply_format.call_syntax is not None:
            self._calls = call_parser(
                reply_format.call_syntax,
                seed,
                frozenset(reply_format.tool_names),
                1 if reply_format.single_call else MAX_CALLS,
            )

    @property
    def num_held(self) -> int:
        """Characters held back until it is known what they are."""
        return sum(part.num_held for part in (self._thoughts, self._calls) if part is not None)

    def push(self, text: str) -> list[ReplyEvent]:
        """Parse more text; returns its events."""
        if self._thoughts is None:
            return self._answered(text)
        return self._split(self._thoughts.push(text))

    def finish(self) -> list[ReplyEvent]:
        """The reply is over: what was held back."""
        events = [] if self._thoughts is None else self._split(self._thoughts.finish())
        return [*events, *self._moved(self._calls.finish() if self._calls is not None else ())]

    def _split(self, parts: tuple[str, str]) -> list[ReplyEvent]:
        thought, answer = parts
        events: list[ReplyEvent] = [ReasoningDelta(thought)] if thought else []
        return [*events, *self._moved(self._answered(answer))] if answer else events

    def _answered(self, text: str) -> list[ReplyEvent]:
        if self._calls is not None:
            return self._calls.push(text)
        return [ContentDelta(text)] if text else []

    def _moved(self, events: Iterable[ReplyEvent]) -> list[ReplyEvent]:
        """With places in the whole reply."""
        by = self._thoughts.num_taken if self._thoughts is not None else 0
        return [_moved(event, by) for event in events]


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A whole call."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ReadReply:
    """A whole reply. A call that did not become whole is content, as the model wrote it."""

    content: str
    reasoning: str
    calls: tuple[ReadCall, ...]


class ReplyReader:
    """Puts a reply together from its events."""

    def __init__(self) -> None:
        self._parts: list[str | tuple[int, int]] = []
        """Content; for a call that did not become whole, where it stands in the reply's text."""
        self._reasoning: list[str] = []
        self._calls: list[ReadCall] = []
        self._begun: ToolCallBegun | None = None
        self._arguments: list[str] = []

    def take(self, event: ReplyEvent) -> None:
        """The next event."""
        match event:
            case ContentDelta(text):
                self._parts.append(text)
            case ReasoningDelta(text):
                self._reasoning.append(text)
            case ToolCallBegun():
                self._begun, self._arguments = event, []
            case ArgumentsDelta(text=text):
                self._arguments.append(text)
            case ToolCallEnded(is_whole=is_whole, end=end):
                self._end(is_whole, end)

    def reply(self, text: str) -> ReadReply:
        """The reply so far; `text` is its text."""
        content = [
            part if isinstance(part, str) else text[part[0] : part[1]] for part in self._parts
        ]
        return ReadReply("".join(content), "".join(self._reasoning), tuple(self._calls))

    def _end(self, is_whole: bool, end: int) -> None:
        begun, self._begun = self._begun, None
        if begun is None:
            return
        if is_whole:
            self._calls.append(ReadCall(begun.id, begun.name, "".join(self._arguments)))
        else:
            self._parts.append((begun.begin, end))


def read_reply(text: str, reply_format: ReplyFormat, seed: str) -> ReadReply:
    """A whole reply at once."""
    parser, reader = ReplyParser(reply_format, seed), ReplyReader()
    for event in [*parser.push(text), *parser.finish()]:
        reader.take(event)
    return reader.reply(text)


def _moved(event: ReplyEvent, by: int) -> ReplyEvent:
    match event:
        case ToolCallBegun(index, call_id, name, begin):
            return ToolCallBegun(index, call_id, name, begin + by)
        case ToolCallEnded(index, is_whole, end):
            return ToolCallEnded(index, is_whole, end + by)
    return event
