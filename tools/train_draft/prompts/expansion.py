"""A small generative grammar: names stand for alternatives, which may hold names again.

A grammar file has sections `[name]`, each followed by its alternatives, one per line (`\\n` is a
line break, `#` begins a comment). In an alternative, `{name}` stands for one of that section's and
`{2-99}` for an integer between the two. A section `[kind:x*3]` or `[held:x]` is a kind of prompt,
drawn three times as often as one without a number.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "grammar"
_SLOT = re.compile(r"\{(?:([a-z][a-z0-9]*)|(\d+)-(\d+))\}")
_HEADER = re.compile(r"\[((?:(kind|held):)?[a-z0-9]+)(?:\*(\d+))?\]")
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Grammar:
    """Sections, and the kinds among them with their weights."""

    sections: dict[str, tuple[str, ...]]
    kinds: dict[str, int]
    held_out: dict[str, int]

    def expand(self, text: str, rng: random.Random, depth: int = 0) -> str:
        """`text` with every name replaced. Raises KeyError for a name that is no section, and
        RecursionError for sections that need each other."""
        if depth > _MAX_DEPTH:
            raise RecursionError(f"the grammar does not end: {text}")

        def replace(slot: re.Match[str]) -> str:
            name, low, high = slot.groups()
            if name is None:
                return str(rng.randint(int(low), int(high)))
            return self.draw(name, rng, depth + 1)

        return _SLOT.sub(replace, text)

    def draw(self, section: str, rng: random.Random, depth: int = 0) -> str:
        """One of the section's alternatives, expanded. Raises as `expand`."""
        return self.expand(rng.choice(self.sections[section]), rng, depth)


def parse(lines: Iterable[str]) -> Grammar:
    """A grammar from its lines. Raises ValueError for a section that is there twice or empty, and
    for a line before the first section."""
    grammar = Grammar({}, {}, {})
    alternatives: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        header = _HEADER.fullmatch(line.strip())
        if header is None:
            if not name:
                raise ValueError(f"a line before the first section: {line!r}")
            alternatives[name].append(line.strip("\n").replace("\\n", "\n"))
            continue
        name, role = header[1], header[2]
        if name in alternatives:
            raise ValueError(f"section {name!r} is there twice")
        alternatives[name] = []
        if role:
            (grammar.kinds if role == "kind" else grammar.held_out)[name] = int(header[3] or 1)
    if empty := [name for name, found in alternatives.items() if not found]:
        raise ValueError(f"sections without alternatives: {empty}")
    grammar.sections.update({name: tuple(found) for name, found in alternatives.items()})
    return grammar


@cache
def shipped_grammar() -> Grammar:
    """The grammar of this folder's files."""
    files = sorted(FOLDER.glob("*.txt"))
    return parse(line for path in files for line in path.read_text("utf-8").splitlines())
