"""Grammars in llama.cpp's notation (GBNF), as Lark's. Pure.

llguidance reads a reply in lexemes, each as long as possible, where GBNF reads it character by
character. So the longest stretches that no rule leads back into become one lexeme each: a grammar
without recursion is one lexeme and has the same texts. With recursion, a lexeme that could end
earlier does not; the reply is always one that the grammar has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

from outrider.errors import InvalidSamplingError
from outrider.sampling.grammar import MAX_GRAMMAR_BYTES, too_long
from outrider.sampling.grammar_cost import MAX_LINES

MAX_DEPTH: Final = 64
"""Most groups around a part of a rule."""
_ROOT: Final = "root"
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<defines>::=)
    |(?P<literal>"(?:[^"\\\n]|\\.)*")
    |(?P<characters>\[(?:[^\]\\]|\\.)*\])
    |(?P<name>[A-Za-z0-9_-]+)
    |(?P<times>[*+?]|\{\s*\d+\s*(?:,\s*\d*\s*)?\})
    |(?P<mark>[()|.])""",
    re.VERBOSE | re.DOTALL,
)
_CHARACTER: Final = re.compile(
    r"\\x(?P<x>[0-9a-fA-F]{2})|\\u(?P<u>[0-9a-fA-F]{4})|\\U(?P<U>[0-9a-fA-F]{8})"
    r"|\\(?P<escaped>.)|(?P<plain>.)",
    re.DOTALL,
)
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, slots=True)
class Text:
    """A text, or a regular expression of one character, as Lark writes them."""

    lark: str


@dataclass(frozen=True, slots=True)
class Name:
    """What another rule stands for."""

    name: str


@dataclass(frozen=True, slots=True)
class Parts:
    """One part behind the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of them."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part several times."""

    part: Node
    times: str


Node: TypeAlias = Text | Name | Parts | Choice | Repeat


def lark_of(text: str) -> str:
    """The grammar in Lark's notation, one rule a line. Raises InvalidSamplingError, whose message
    quotes no text of it; one that is longer than any grammar may be is not read."""
    if len(text) > MAX_GRAMMAR_BYTES:
        raise too_long()
    rules = _Reader(text).rules()
    if _ROOT not in rules:
        raise InvalidSamplingError(
            f"the grammar has no rule {_ROOT!r}; that is where a reply begins"
        )
    for node in rules.values():
        for name in _names(node):
            if name not in rules:
                raise InvalidSamplingError("the grammar uses a name that it does not define")
    return _Writer(rules).lark()


class _Reader:
    """Reads a grammar's rules."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._at = 0

    def _split(self) -> Iterator[tuple[str, str, int]]:
        at = 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None:
                self._refuse(at)
            if match.lastgroup != "space":
                yield match.lastgroup or "", match.group(), at
            at = match.end()

    def _refuse(self, at: int) -> NoReturn:
        line = self._text.count("\n", 0, at) + 1
        raise InvalidSamplingError(f"line {line} of the grammar is not valid; write it in GBNF")

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self._at + ahead
        return self._tokens[at][:2] if at < len(self._tokens) else ("", "")

    def _take(self, kind: str) -> str:
        found, text = self._peek()
        if found != kind:
            last = self._tokens[min(self._at, len(self._tokens) - 1)] if self._tokens else None
            self._refuse(last[2] if last else 0)
        self._at += 1
        return text

    def rules(self) -> dict[str, Node]:
        """Every rule by its name. Raises InvalidSamplingError."""
        found = dict[str, Node]()
        while self._at < len(self._tokens):
            name = self._take("name")
            self._take("defines")
            found[name] = self._choice(0)
            if len(found) >= MAX_LINES:
                raise InvalidSamplingError(
                    f"the grammar has more than {MAX_LINES} rules; write them with more choices"
                )
        return found

    def _choice(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise InvalidSamplingError("the grammar is nested too deep; name its inner parts")
        options = [self._sequence(depth)]
        while self._peek() == ("mark", "|"):
            self._at += 1
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, depth: int) -> Node:
        parts = list[Node]()
        while (part := self._part(depth)) is not None:
            if self._peek()[0] == "times":
                part = Repeat(part, re.sub(r"\s", "", self._take("times")))
            parts.append(part)
        return parts[0] if len(parts) == 1 else Parts(tuple(parts))

    def _part(self, depth: int) -> Node | None:
        kind, text = self._peek()
        if kind == "literal":
            self._at += 1
            return Text(json.dumps("".join(_characters(text[1:-1])), ensure_ascii=False))
        if kind == "characters":
            self._at += 1
            return Text(f"/{_class(text[1:-1])}/")
        if kind == "name" and self._peek(1)[0] == "defines":
            return None  # the next rule begins
        if kind == "name":
            self._at += 1
            return Name(text)
        if text == ".":
            self._at += 1
            return Text(r"/(.|\n)/")
        if text == "(":
            self._at += 1
            inner = self._choice(depth + 1)
            if self._peek() != ("mark", ")"):
                self._take("end")
            self._at += 1
            return inner
        return None


def _characters(text: str) -> Iterator[str]:
    for match in _CHARACTER.finditer(text):
        if match["escaped"] is not None:
            yield _ESCAPED.get(match["escaped"], match["escaped"])
        elif match["plain"] is not None:
            yield match["plain"]
        else:
            yield _numbered(match["x"] or match["u"] or match["U"])


def _numbered(digits: str) -> str:
    number = int(digits, 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise InvalidSamplingError("the grammar has an escape that is no character of Unicode")
    return chr(number)


def _class(text: str) -> str:
    """A class of characters as a regular expression."""
    is_negated = text.startswith("^")
    matches = list(_CHARACTER.finditer(text, int(is_negated)))
    characters = list(_characters(text[int(is_negated) :]))
    made = ["[^" if is_negated else "["]
    for number, (match, character) in enumerate(zip(matches, characters, strict=True)):
        is_range = match["plain"] == "-" and 0 < number < len(matches) - 1
        made.append("-" if is_range else _quoted(character))
    return "".join([*made, "]"])


def _quoted(character: str) -> str:
    return (
        character if character.isalnum() and character.isascii() else f"\\x{{{ord(character):X}}}"
    )


def _names(node: Node) -> Iterator[str]:
    match node:
        case Name(name):
            yield name
        case Parts(parts) | Choice(parts):
            for part in parts:
                yield from _names(part)
        case Repeat(part):
            yield from _names(part)


class _Writer:
    """Writes rules in Lark's notation."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._numbers = {name: number for number, name in enumerate(rules)}
        self._recursive = _recursive(rules)
        self._lexemes = list[str]()
        """Definitions of stretches without recursion within rules that have some."""

    def lark(self) -> str:
        """All rules, the first of which is `start`."""
        lines = [f"start: {self._rule(_ROOT)}"]
        for name, node in self._rules.items():
            if name in self._recursive:
                lines.append(f"{self._rule(name)}: {self._written(node)}")
            else:
                lines.append(f"{self._rule(name)}: {self._lexeme(node)}")
        return "\n".join([*lines, *self._lexemes, ""])

    def _rule(self, name: str) -> str:
        return f"{'r' if name in self._recursive else 'T'}{self._numbers[name]}"

    def _is_lexeme(self, node: Node) -> bool:
        return self._recursive.isdisjoint(_names(node))

    def _lexeme(self, node: Node) -> str:
        """An expression of a terminal."""
        match node:
            case Text(lark):
                return lark
            case Name(name):
                return self._rule(name)
            case Parts(parts):
                return " ".join(map(self._grouped, parts)) or '""'
            case Choice(options):
                return " | ".join(map(self._lexeme, options))
            case Repeat(part, times):
                return f"({self._lexeme(part)}){times}"

    def _grouped(self, node: Node) -> str:
        return f"({self._lexeme(node)})" if isinstance(node, Choice) else self._lexeme(node)

    def _written(self, node: Node) -> str:
        """An expression of a rule that is, or leads to, a recursive one."""
        if self._is_lexeme(node):
            self._lexemes.append(f"S{len(self._lexemes)}: {self._lexeme(node)}")
            return f"S{len(self._lexemes) - 1}"
        match node:
            case Parts(parts):
                return " ".join(map(self._written, self._stretches(parts)))
            case Choice(options):
                return f"({' | '.join(map(self._written, options))})"
            case Repeat(part, times):
                return f"({self._written(part)}){times}"
            case Name(name):
                return self._rule(name)
            case Text(lark):
                return lark

    def _stretches(self, parts: Sequence[Node]) -> Iterator[Node]:
        """The parts, of which those in a row that are no recursion are one."""
        stretch = list[Node]()
        for part in parts:
            if self._is_lexeme(part):
                stretch.append(part)
                continue
            if stretch:
                yield Parts(tuple(stretch))
            stretch = []
            yield part
        if stretch:
            yield Parts(tuple(stretch))


def _recursive(rules: Mapping[str, Node]) -> frozenset[str]:
    """Rules that lead to themselves, or to such."""
    leads_to = {name: set(_names(node)) for name, node in rules.items()}
    named_by: dict[str, list[str]] = {name: [] for name in rules}
    for name, others in leads_to.items():
        for other in others:
            named_by[other].append(name)
    # A rule all whose names are without recursion is without.
    plain = [name for name, others in leads_to.items() if not others]
    for name in plain:
        for other in named_by[name]:
            leads_to[other].remove(name)
            if not leads_to[other]:
                plain.append(other)
    return frozenset(leads_to) - frozenset(plain)
