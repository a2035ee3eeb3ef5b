"""One call as a JSON object, {"name": "f", "arguments": {...}}, character by character. Pure.

The keys come in any order. The arguments pass on as they come once the name is known; before that
they are held. `parameters` means arguments, as Llama writes it; arguments that are a JSON text
within JSON are unpacked; other keys (an id, a type) are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import Enum, auto
from typing import Final

from outrider.reply_parsing.json_scanner import JsonScanner, Progress

MAX_NAME_CHARS: Final = 128
MAX_HELD_CHARS: Final = 1 << 16
"""Most characters held of a call whose name has not arrived."""
_SPACES: Final = " \t\n\r"
_MAX_KEY_CHARS: Final = 256
_ARGUMENTS: Final = ("arguments", "parameters")


class _State(Enum):
    OPEN = auto()
    KEY_OR_END = auto()
    KEY = auto()
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()
    IN_VALUE = auto()
    COMMA_OR_END = auto()


class CallObject:
    """One object. `take` gives what became known: the name once, and pieces of the arguments."""

    def __init__(self, known: Collection[str] | None = None) -> None:
        """`known`: a call of anything else is none; None: any name is one."""
        self._known = known
        self._state = _State.OPEN
        self._scanner = JsonScanner()
        self._raw: list[str] = []
        """Characters of the present key or value, if it is needed."""
        self._key = ""
        self._name = ""
        self._has_arguments = False
        self._streams = False
        """The value under way is the arguments' object."""
        self._keeps = False
        """The value under way is collected."""
        self._arguments: list[str] = []
        """Characters of the arguments that were not taken yet."""
        self._num_held = 0
        self.is_begun = False
        """The name is known, and arguments have begun."""
        self.is_complete = False
        """The arguments are whole, if not yet the object."""

    @property
    def name(self) -> str:
        """Once it `is_begun`."""
        return self._name

    def take(self) -> str:
        """The arguments that came since the last time, once it `is_begun`."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def push(self, char: str) -> Progress:
        """The next character, from the opening brace on."""
        if not self.is_begun:
            self._num_held += 1
            if self._num_held > MAX_HELD_CHARS:
                return Progress.BROKEN
        if self._state in (_State.IN_KEY, _State.IN_VALUE):
            return self._scanned(char)
        if char in _SPACES and self._state is not _State.OPEN:
            return Progress.MORE
        match self._state:
            case _State.OPEN if char == "{":
                self._state = _State.KEY_OR_END
            case _State.KEY | _State.KEY_OR_END if char == '"':
                self._scanner, self._raw = JsonScanner(), []
                self._state, self._keeps = _State.IN_KEY, True
                return self._scanned(char)
            case _State.COLON if char == ":":
                self._state = _State.VALUE
            case _State.VALUE:
                return self._begin_value(char)
            case _State.COMMA_OR_END if char == ",":
                self._state = _State.KEY
            case _State.KEY_OR_END | _State.COMMA_OR_END if char == "}":
                return self._end()
            case _:
                return Progress.BROKEN
        return Progress.MORE

    def _begin_value(self, char: str) -> Progress:
        is_arguments = self._key in _ARGUMENTS
        if (self._key == "name" and (self._name or char != '"')) or (
            is_arguments and (self._has_arguments or char not in '{"n')
        ):
            return Progress.BROKEN
        self._has_arguments = self._has_arguments or is_arguments
        self._streams = is_arguments and char == "{"
        self._keeps = self._key == "name" or (is_arguments and char == '"')
        self._state = _State.IN_VALUE
        self._scanner, self._raw = JsonScanner(), []
        if self._streams and self._name:
            self.is_begun = True
        return self._scanned(char)

    def _scanned(self, char: str) -> Progress:
        progress = self._scanner.push(char)
        if progress is Progress.BROKEN:
            return progress
        if progress is Progress.PAST:
            self._state = _State.COMMA_OR_END
            if self._key in _ARGUMENTS:
                self._arguments.append("{}")  # null
            return self.push(char)
        if self._streams:
            self._arguments.append(char)
        elif self._keeps:
            self._raw.append(char)
            if self._state is _State.IN_KEY and len(self._raw) > _MAX_KEY_CHARS:
                return Progress.BROKEN
        return self._value_ended() if progress is Progress.WHOLE else progress

    def _value_ended(self) -> Progress:
        was_key = self._state is _State.IN_KEY
        is_packed = self._keeps and self._key in _ARGUMENTS
        text = json.loads("".join(self._raw)) if self._keeps else ""
        self._raw, self._keeps, self._streams = [], False, False
        if was_key:
            self._key, self._state = text, _State.COLON
            return Progress.MORE
        self._state = _State.COMMA_OR_END
        self.is_complete = self.is_complete or self._key in _ARGUMENTS
        if self._key == "name":
            return self._named(text)
        if is_packed:
            text = text or "{}"
            if not _is_object(text):
                return Progress.BROKEN
            self._arguments.append(text)
            self.is_begun = bool(self._name)
        return Progress.MORE

    def _named(self, name: str) -> Progress:
        is_name = 0 < len(name) <= MAX_NAME_CHARS and name.isprintable()
        if not is_name or (self._known is not None and name not in self._known):
            return Progress.BROKEN
        self._name = name
        self.is_begun = bool(self._arguments)
        return Progress.MORE

    def _end(self) -> Progress:
        if not self._name:
            return Progress.BROKEN
        if not self._has_arguments:
            self._arguments.append("{}")
        self.is_begun = True
        return Progress.WHOLE


def _is_object(text: str) -> bool:
    """By the rules of arguments that are not packed into a string."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    scanner, progress = JsonScanner(), Progress.MORE
    for char in text.strip(_SPACES):
        if progress is not Progress.MORE:
            return False
        progress = scanner.push(char)
    return progress is Progress.WHOLE and text.lstrip(_SPACES).startswith("{")
