"""Splits a reply, without its reasoning, into content and tool calls. Pure.

Between calls the text is searched for the marker that begins one; within a call it is read
character by character. Text that turns out not to be a call is content, with its marker; if its
beginning was already reported as a call, only the rest is content. Spaces between calls, and
between content and a call, come from the template and are dropped.

The result does not depend on how the text was cut into pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from enum import Enum, auto
from hashlib import blake2b
from typing import Final

from outrider.reply_parsing.call_object import MAX_HELD_CHARS, MAX_NAME_CHARS, CallObject
from outrider.reply_parsing.events import (
    ArgumentsDelta,
    ContentDelta,
    ReplyEvent,
    ToolCallBegun,
    ToolCallEnded,
)
from outrider.reply_parsing.formats import (
    ARGS,
    CALL_ID,
    END_OF_TOOL_CALL,
    PYTHON_TAG,
    TOOL_CALL,
    TOOL_CALLS,
    CallSyntax,
)
from outrider.reply_parsing.harmony import HarmonyParser
from outrider.reply_parsing.json_scanner import JsonScanner, Progress

MAX_SPACES: Final = 64
"""Spaces before a call that are left out; more of them are content."""
_SPACES: Final = " \t\n\r"
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class _Mode(Enum):
    CONTENT = auto()
    BEFORE = auto()
    """Behind a marker, before the call."""
    CALL = auto()
    AFTER = auto()
    """Behind a call, before what separates it from what follows."""


class CallParser(ABC):
    """One reply. `push` its text, then `finish` once."""

    marker: str
    """Begins a call."""

    def __init__(self, seed: str, names: Collection[str], max_calls: int) -> None:
        """`seed`: input for the calls' ids. `names`: the tools' names. Calls beyond `max_calls` are
        parsed but not reported."""
        self._seed = seed
        self._names = names
        self._max_calls = max_calls
        self._events: list[ReplyEvent] = []
        self._mode = _Mode.CONTENT
        self._tail = ""
        """In CONTENT: text that may be left out, or belong to a marker."""
        self._held: list[str] = []
        """Text of a call that is not reported yet, with its marker, and text behind a call."""
        self._call = CallObject()
        self._index = -1
        self._is_told = False
        """The call under way has been begun."""
        self._has_ended = False
        """A call has ended, and only spaces came since."""
        self._begin = 0
        self._position = 0
        """Position of the next character, in code points."""

    @property
    def num_held(self) -> int:
        """Characters that are kept."""
        return len(self._tail) + sum(map(len, self._held))

    def push(self, text: str) -> list[ReplyEvent]:
        """Parse more text; returns its events."""
        at = 0
        while at < len(text):
            if self._mode is _Mode.CONTENT:
                at = self._content(text, at)
            else:
                at += self._stepped(text[at])
        self._flush_arguments()
        return self._taken()

    def finish(self) -> list[ReplyEvent]:
        """The reply is over."""
        if self._mode in (_Mode.BEFORE, _Mode.CALL):
            self._break()
        if self._mode is _Mode.AFTER:
            self._tail, self._held = "".join(self._held), []
        if not (self._has_ended and not self._tail.strip(_SPACES)):
            self._tell(self._tail)
        self._tail = ""
        return self._taken()

    # What a syntax says.

    @abstractmethod
    def _before(self, char: str) -> Progress:
        """A character behind the marker: MORE in front of the call, PAST for the call's first one,
        which then calls `_begin_call`, BROKEN if no call follows."""

    @abstractmethod
    def _after(self, char: str) -> Progress:
        """A character behind a call: MORE between calls, WHOLE for the last one of all calls, PAST
        if the next call may begin here, BROKEN for content."""

    def _new_call(self) -> CallObject:
        return CallObject()

    def _read(self, char: str) -> Progress:
        """A character of the call under way."""
        progress = self._call.push(char)
        if self._call.is_begun and not self._is_told:
            self._tell_call(self._call.name)
        return progress

    def _arguments(self) -> str:
        return self._call.take() if self._is_told else ""

    # Common to all.

    def _content(self, text: str, at: int) -> int:
        """Search for a marker; returns the index in `text` at which another mode continues."""
        found = self._tail + text[at:]
        start = found.find(self.marker)
        if start < 0:
            keep = len(found) - _num_kept(found, self.marker)
            self._tell(found[:keep])
            self._tail = found[keep:]
            self._position += len(text) - at
            return len(text)
        spaces = min(MAX_SPACES, start - len(found[:start].rstrip(_SPACES)))
        self._tell(found[: start - spaces])
        used = start + len(self.marker) - len(self._tail)
        self._begin = self._position - len(self._tail) + start - spaces
        self._position += used
        self._tail = ""
        self._await_call(found[start - spaces : start], self.marker)
        return at + used

    def _await_call(self, *held: str) -> None:
        self._mode = _Mode.BEFORE
        self._held = list(held)

    def _begin_call(self) -> None:
        self._mode = _Mode.CALL
        self._call = self._new_call()
        self._is_told = False

    def _stepped(self, char: str) -> int:
        """Take a character outside content; 0 if content begins with it."""
        if self._mode is _Mode.BEFORE:
            progress = self._before(char)
            if progress is Progress.PAST:
                progress = self._read(char)
        elif self._mode is _Mode.CALL:
            progress = self._read(char)
        else:
            progress = self._after(char)
            return self._separated(char, progress)
        if progress is Progress.BROKEN or len(self._held) >= MAX_HELD_CHARS:
            self._break()
            return 0
        if not self._is_told:
            self._held.append(char)
        self._position += 1
        if progress is Progress.WHOLE:
            self._end_call(is_whole=True)
        return 1

    def _separated(self, char: str, progress: Progress) -> int:
        if progress is Progress.BROKEN or len(self._held) > MAX_SPACES:
            self._mode, self._tail, self._held = _Mode.CONTENT, "".join(self._held), []
            return 0
        self._held.append(char)
        self._position += 1
        if progress is Progress.WHOLE:
            self._mode, self._held = _Mode.CONTENT, []
        elif progress is Progress.PAST:
            self._begin = self._position - len(self._held)
            self._await_call(*self._held)
        return 1

    def _break(self) -> None:
        """End what was taken for a call: it is none, or not a whole one."""
        self._mode = _Mode.CONTENT
        if self._is_told:
            # A brace that is missing at the end takes nothing from the call.
            is_whole = self._call.is_complete
            self._end_call(is_whole=is_whole)
            self._mode = _Mode.AFTER if is_whole else _Mode.CONTENT
        elif held := "".join(self._held):
            # Spaces alone may stand before a marker.
            if held.strip(_SPACES):
                self._tell(held)
            else:
                self._tail = held
        self._held = []

    def _tell(self, text: str) -> None:
        if text:
            self._has_ended = self._has_ended and not text.strip(_SPACES)
            self._events.append(ContentDelta(text))

    def _tell_call(self, name: str) -> None:
        self._index += 1
        self._is_told = True
        self._held = []
        if self._is_wanted:
            call_id = call_id_of(self._seed, self._index, self.id_chars)
            self._events.append(ToolCallBegun(self._index, call_id, name, self._begin))

    def _flush_arguments(self) -> None:
        text = self._arguments()
        if text and self._is_wanted:
            self._events.append(ArgumentsDelta(self._index, text))

    def _end_call(self, *, is_whole: bool) -> None:
        self._flush_arguments()
        if self._is_wanted:
            self._events.append(ToolCallEnded(self._index, is_whole, self._position))
        self._mode, self._held = _Mode.AFTER, []
        self._is_told = False
        self._has_ended = is_whole

    @property
    def _is_wanted(self) -> bool:
        return self._index < self._max_calls

    @property
    def id_chars(self) -> int:
        """Letters and digits of an id; 0: as many as OpenAI's have."""
        return 0

    def _taken(self) -> list[ReplyEvent]:
        events, self._events = self._events, []
        return events


class HermesParser(CallParser):
    """<tool_call> {...} </tool_call>, where the end may be missing."""

    marker = TOOL_CALL

    def _before(self, char: str) -> Progress:
        if char in _SPACES:
            return Progress.MORE
        self._begin_call()
        return Progress.PAST

    def _after(self, char: str) -> Progress:
        text = ("".join(self._held) + char).lstrip(_SPACES)
        if not END_OF_TOOL_CALL.startswith(text):
            return Progress.BROKEN
        return Progress.WHOLE if text == END_OF_TOOL_CALL else Progress.MORE


class Llama3Parser(CallParser):
    """{...} at the beginning of the reply or behind <|python_tag|>, further ones behind ";". Only
    calls of known tools count: any other object may be the answer itself."""

    marker = PYTHON_TAG

    def __init__(self, seed: str, names: Collection[str], max_calls: int) -> None:
        super().__init__(seed, names, max_calls)
        self._await_call()

    def _new_call(self) -> CallObject:
        return CallObject(self._names)

    def _before(self, char: str) -> Progress:
        if char in _SPACES:
            return Progress.MORE
        if char != "{":
            return Progress.BROKEN
        self._begin_call()
        return Progress.PAST

    def _after(self, char: str) -> Progress:
        if char in _SPACES:
            return Progress.MORE
        return Progress.PAST if char == ";" else Progress.BROKEN


class MistralParser(CallParser):
    """[TOOL_CALLS] before a list of objects, one object, or name[ARGS]{...}; the last one may have
    [CALL_ID] and an id before [ARGS], which is not used: ids are made of the request."""

    marker = TOOL_CALLS

    def __init__(self, seed: str, names: Collection[str], max_calls: int) -> None:
        super().__init__(seed, names, max_calls)
        self._is_list = False
        self._name = ""
        """In front of arguments, with what else stands there."""
        self._scanner: JsonScanner | None = None
        """Scanner of the arguments behind a name."""
        self._pieces: list[str] = []

    @property
    def id_chars(self) -> int:
        """Length of ids in Mistral's templates."""
        return 9

    def _await_call(self, *held: str) -> None:
        super()._await_call(*held)
        self._name, self._scanner = "", None
        self._is_list = self._is_list and self.marker not in held

    def _before(self, char: str) -> Progress:
        if not self._name and char in _SPACES:
            return Progress.MORE
        if not self._name and char == "[" and not self._is_list:
            self._is_list = True
            return Progress.MORE
        if char == "{":
            if self._name and not self._called_name():
                return Progress.BROKEN
            self._begin_call()
            self._scanner = JsonScanner() if self._name else None
            return Progress.PAST
        self._name += char
        is_name = not self._is_list and len(self._name) <= 2 * MAX_NAME_CHARS
        return Progress.MORE if is_name and char.isprintable() else Progress.BROKEN

    def _called_name(self) -> str:
        """The name in front of arguments; empty if that is none."""
        name, *rest = self._name.removesuffix(ARGS).split(CALL_ID)
        name = name.strip(_SPACES)
        is_name = name.isprintable() and not set(name) & set(' []{}",:') and len(rest) < 2
        return name if is_name and len(name) <= MAX_NAME_CHARS else ""

    def _read(self, char: str) -> Progress:
        if self._scanner is None:
            return super()._read(char)
        if not self._is_told:
            self._tell_call(self._called_name())
        progress = self._scanner.push(char)
        if progress is not Progress.BROKEN:
            self._pieces.append(char)
        return progress

    def _arguments(self) -> str:
        if self._scanner is None:
            return super()._arguments()
        text = "".join(self._pieces)
        self._pieces = []
        return text

    def _after(self, char: str) -> Progress:
        if char in _SPACES:
            return Progress.MORE
        if self._is_list and char in ",]":
            return Progress.PAST if char == "," else Progress.WHOLE
        return Progress.BROKEN


_PARSERS: Final[dict[CallSyntax, type[CallParser]]] = {
    CallSyntax.HERMES: HermesParser,
    CallSyntax.LLAMA3_JSON: Llama3Parser,
    CallSyntax.MISTRAL: MistralParser,
    CallSyntax.MISTRAL_ARGS: MistralParser,
}


def call_parser(
    syntax: CallSyntax, seed: str, names: Collection[str], max_calls: int
) -> CallParser | HarmonyParser:
    """The parser of a syntax, for one reply."""
    if syntax is CallSyntax.HARMONY:
        return HarmonyParser(lambda index: call_id_of(seed, index), names, max_calls)
    return _PARSERS[syntax](seed, names, max_calls)


def call_id_of(seed: str, index: int, num_chars: int = 0) -> str:
    """The id of a reply's call: the same whenever the same request is answered, and wherever.
    `num_chars` letters and digits, or "call_" and 24 of them."""
    digest = blake2b(f"{index}:{seed}".encode(), digest_size=32, person=b"tool call").digest()
    number = int.from_bytes(digest)
    chars = []
    for _ in range(num_chars or 24):
        number, rest = divmod(number, len(_ALPHABET))
        chars.append(_ALPHABET[rest])
    return "".join(chars) if num_chars else "call_" + "".join(chars)


def _num_kept(text: str, marker: str) -> int:
    """Characters at the end that may belong to a marker, and the spaces in front of those."""
    begun = next(
        (n for n in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:n])), 0
    )
    before = text[: len(text) - begun]
    num_spaces = len(before) - len(before.rstrip(_SPACES))
    return begun + min(MAX_SPACES, num_spaces)
