"""Splits a reply in gpt-oss's format, without its first reasoning, into content, calls and further
reasoning. Pure.

Every part is a message of its own, with a header that names its channel and its recipient:

    <|start|>assistant<|channel|>final<|message|>TEXT<|return|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>

The channel `analysis` is reasoning; what is said to a function is its call; all else is content.
The first header has no `<|start|>assistant`, with which the prompt ends. Headers and ends of
messages are markup and left out, also a header that the reply ends in. The result does not depend
on how the text was cut into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import Final

from outrider.reply_parsing.call_object import MAX_NAME_CHARS
from outrider.reply_parsing.events import (
    ArgumentsDelta,
    ContentDelta,
    ReasoningDelta,
    ReplyEvent,
    ToolCallBegun,
    ToolCallEnded,
)
from outrider.reply_parsing.formats import CHANNEL, HARMONY_ENDS, MESSAGE, START
from outrider.reply_parsing.json_scanner import JsonScanner, Progress

MAX_HEADER_CHARS: Final = 512
"""Longest header; what begins a longer one is content."""
_SPACES: Final = " \t\n\r"
_CHANNEL: Final = re.compile(rf"{re.escape(CHANNEL)}\s*(\w*)")
_RECIPIENT: Final = re.compile(r"to=functions\.([^\s<]+)")
_BOUNDARIES: Final = (START, CHANNEL, *HARMONY_ENDS)
_BOUNDARY: Final = re.compile("|".join(map(re.escape, _BOUNDARIES)))
_LONGEST: Final = max(map(len, _BOUNDARIES))


class _Part(Enum):
    HEADER = auto()
    CONTENT = auto()
    ANALYSIS = auto()
    CALL = auto()
    BETWEEN = auto()
    """Behind a message: spaces are left out, and anything else is content."""


class HarmonyParser:
    """One reply. `push` its text, then `finish` once."""

    def __init__(
        self,
        call_id: Callable[[int], str],
        names: Collection[str],
        max_calls: int,
    ) -> None:
        """`call_id` makes the id of the call with a number. `names`: the tools'; without them no
        message is a call. Calls beyond `max_calls` are parsed but not reported."""
        self._call_id = call_id
        self._names = names
        self._max_calls = max_calls
        self._events: list[ReplyEvent] = []
        self._part = _Part.CONTENT
        self._text = ""
        """What is held back: a header, or what may begin a boundary."""
        self._opener = ""
        """The boundary that began the header."""
        self._begin = 0
        """Where it stands."""
        self._position = 0
        """Code points that are behind."""
        self._index = -1
        self._name = ""
        self._scanner: JsonScanner | None = None
        """Of the arguments; None: they have not begun."""
        self._arguments: list[str] = []

    @property
    def num_held(self) -> int:
        """Characters that are kept."""
        return len(self._text)

    def push(self, text: str) -> list[ReplyEvent]:
        """Parse more text; returns its events."""
        self._text += text
        while self._step():
            pass
        self._flush_arguments()
        return self._taken()

    def finish(self) -> list[ReplyEvent]:
        """The reply is over."""
        while self._text and self._part is not _Part.HEADER:
            self._tell(len(self._text))
        self._end_call(is_whole=False)
        return self._taken()

    def _step(self) -> bool:
        """Whether there may be more to do."""
        if self._part is _Part.HEADER:
            return self._read_header()
        found, part = _BOUNDARY.search(self._text), self._part
        self._tell(found.start() if found is not None else len(self._text) - self._num_begun())
        if self._part is not part:
            return True  # a call is over, and what follows it is read as something else
        if found is None:
            return False
        self._end_call(is_whole=False)
        is_header = found.group() in (START, CHANNEL)
        self._begin, self._opener = self._position, found.group()
        self._skip(len(found.group()))
        self._part = _Part.HEADER if is_header else _Part.BETWEEN
        return True

    def _read_header(self) -> bool:
        end = self._text.find(MESSAGE, 0, MAX_HEADER_CHARS + len(MESSAGE))
        if end < 0:
            if len(self._text) < MAX_HEADER_CHARS + len(MESSAGE):
                return False
            self._events.append(ContentDelta(self._opener))
            self._part = _Part.CONTENT
            return True
        header = (self._opener if self._opener == CHANNEL else "") + self._text[:end]
        self._skip(end + len(MESSAGE))
        self._open(header)
        return True

    def _open(self, header: str) -> None:
        """The message behind a header."""
        recipient = _RECIPIENT.search(header)
        name = recipient.group(1) if recipient is not None and self._names else ""
        channel = _CHANNEL.search(header)
        if name and name.isprintable() and len(name) <= MAX_NAME_CHARS:
            self._part, self._name, self._scanner = _Part.CALL, name, None
        elif channel is not None and channel.group(1) == "analysis":
            self._part = _Part.ANALYSIS
        else:
            self._part = _Part.CONTENT

    def _tell(self, length: int) -> None:
        """So much of the text belongs to the part; less is taken where a call ends in it."""
        text = self._text[:length]
        if self._part is _Part.CALL:
            self._read_call(text)
            return
        self._skip(length)
        if self._part is _Part.BETWEEN:
            text = text.lstrip(_SPACES)
            self._part = _Part.CONTENT if text else _Part.BETWEEN
        if text:
            is_thought = self._part is _Part.ANALYSIS
            self._events.append(ReasoningDelta(text) if is_thought else ContentDelta(text))

    def _read_call(self, text: str) -> None:
        for number, char in enumerate(text):
            if self._scanner is None:
                if char in _SPACES:
                    continue
                if char != "{":
                    self._skip(number)
                    self._part = _Part.CONTENT
                    return
                self._begin_call()
            assert self._scanner is not None
            progress = self._scanner.push(char)
            if progress is Progress.MORE:
                self._arguments.append(char)
                continue
            is_whole = progress is Progress.WHOLE
            self._arguments += [char] if is_whole else []
            self._skip(number + is_whole)
            self._end_call(is_whole=is_whole)
            self._part = _Part.BETWEEN if is_whole else _Part.CONTENT
            return
        self._skip(len(text))

    def _begin_call(self) -> None:
        self._index += 1
        self._scanner = JsonScanner()
        if self._index < self._max_calls:
            call_id = self._call_id(self._index)
            self._events.append(ToolCallBegun(self._index, call_id, self._name, self._begin))

    def _end_call(self, *, is_whole: bool) -> None:
        """If one is under way."""
        if self._part is not _Part.CALL or self._scanner is None:
            return
        self._flush_arguments()
        self._scanner = None
        if self._index < self._max_calls:
            self._events.append(ToolCallEnded(self._index, is_whole, self._position))

    def _flush_arguments(self) -> None:
        text, self._arguments = "".join(self._arguments), []
        if text and self._index < self._max_calls:
            self._events.append(ArgumentsDelta(self._index, text))

    def _skip(self, length: int) -> None:
        self._text = self._text[length:]
        self._position += length

    def _num_begun(self) -> int:
        """Characters at the end that may begin a boundary."""
        lengths = range(min(_LONGEST - 1, len(self._text)), 0, -1)
        return next((n for n in lengths if _begins_boundary(self._text[-n:])), 0)

    def _taken(self) -> list[ReplyEvent]:
        events, self._events = self._events, []
        return events


def _begins_boundary(text: str) -> bool:
    return any(len(text) < len(it) and it.startswith(text) for it in _BOUNDARIES)
