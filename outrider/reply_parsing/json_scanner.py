"""Checks a JSON value (RFC 8259) character by character, as it comes. Pure."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

MAX_DEPTH: Final = 64
"""Objects and lists within one another."""
_MAX_WORD_CHARS: Final = 512
"""Most characters of a number, or of true, false, null."""
_SPACES: Final = " \t\n\r"
_WORD_ENDS: Final = frozenset(",]}" + _SPACES)
_WORD: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_HEX: Final = frozenset("0123456789abcdefABCDEF")


class Progress(Enum):
    """Effect of a character."""

    MORE = auto()
    """It belongs to the value, which is not whole yet."""
    WHOLE = auto()
    """It is the last one of the value."""
    PAST = auto()
    """The value, a number or a word, was whole before it."""
    BROKEN = auto()
    """The text cannot be JSON."""


class _Want(Enum):
    VALUE = auto()
    ITEM_OR_END = auto()
    KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    COMMA_OR_END = auto()


class JsonScanner:
    """One value. Not pushed to any more after it was whole or broken."""

    def __init__(self) -> None:
        self._want = _Want.VALUE
        self._open: list[str] = []
        """Closing characters of the open objects and lists."""
        self._is_in_string = False
        self._is_key = False
        self._num_hex = 0
        """Digits missing from a unicode escape."""
        self._is_escaped = False
        self._word = ""

    def push(self, char: str) -> Progress:
        """The next character; of spaces before the value too."""
        if self._is_in_string:
            return self._in_string(char)
        if self._word:
            return self._in_word(char)
        if char in _SPACES:
            return Progress.MORE
        if self._want in (_Want.VALUE, _Want.ITEM_OR_END):
            return self._value(char)
        return self._between(char)

    def _value(self, char: str) -> Progress:
        if char == "]" and self._want is _Want.ITEM_OR_END:
            return self._close(char)
        if char in "{[":
            if len(self._open) >= MAX_DEPTH:
                return Progress.BROKEN
            self._open.append("}" if char == "{" else "]")
            self._want = _Want.KEY_OR_END if char == "{" else _Want.ITEM_OR_END
        elif char == '"':
            self._is_in_string, self._is_key = True, False
        elif char in "-0123456789tfn":
            self._word = char
        else:
            return Progress.BROKEN
        return Progress.MORE

    def _between(self, char: str) -> Progress:
        match self._want:
            case _Want.KEY | _Want.KEY_OR_END if char == '"':
                self._is_in_string = self._is_key = True
            case _Want.COLON if char == ":":
                self._want = _Want.VALUE
            case _Want.COMMA_OR_END if char == ",":
                self._want = _Want.KEY if self._open[-1] == "}" else _Want.VALUE
            case _Want.KEY_OR_END | _Want.COMMA_OR_END:
                return self._close(char)
            case _:
                return Progress.BROKEN
        return Progress.MORE

    def _close(self, char: str) -> Progress:
        if char != self._open[-1]:
            return Progress.BROKEN
        self._open.pop()
        return self._ended()

    def _in_string(self, char: str) -> Progress:
        if self._num_hex:
            self._num_hex -= 1
            return Progress.MORE if char in _HEX else Progress.BROKEN
        if self._is_escaped:
            self._is_escaped = False
            self._num_hex = 4 if char == "u" else 0
            return Progress.MORE if char in '"\\/bfnrtu' else Progress.BROKEN
        if char == '"':
            self._is_in_string = False
            if not self._is_key:
                return self._ended()
            self._want = _Want.COLON
        elif char < " ":
            return Progress.BROKEN
        self._is_escaped = char == "\\"
        return Progress.MORE

    def _in_word(self, char: str) -> Progress:
        if char not in _WORD_ENDS:
            self._word += char
            return Progress.MORE if len(self._word) <= _MAX_WORD_CHARS else Progress.BROKEN
        if _WORD.fullmatch(self._word) is None:
            return Progress.BROKEN
        self._word = ""
        if self._ended() is Progress.WHOLE:
            return Progress.PAST
        return self.push(char)

    def _ended(self) -> Progress:
        """An inner value is whole, or the outermost one."""
        self._want = _Want.COMMA_OR_END
        return Progress.MORE if self._open else Progress.WHOLE
