"""A model's safe places: those between two characters that nothing of its tokenizer spans."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

WORD: Final = r"[^\W_]"
"""A letter or a number of any script, by Python's tables."""
SETTLED_LETTERS: Final = (
    "A-Za-z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017f\u0391-\u03a1\u03a3-\u03a9\u03b1-\u03c9"
    "\u0410-\u044f\u05d0-\u05ea\u0621-\u063a\u0641-\u064a\u0e01-\u0e30\u0e32\u0e33"
    "\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
)
"""Letters and digits that are such in every version of Unicode since 2.0 (a character class)."""
CJK: Final = "\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5"
"""Kana and ideographs, which are written without spaces (a character class)."""
CJK_STOPS: Final = "\uff0c\u3002\u3001\uff01\uff1f\uff1a\uff1b"
"""Full-width comma, full stop and their kin (a character class)."""


@dataclass(frozen=True, slots=True)
class CutRule:
    """Where one tokenizer's texts may be cut. Immutable; made by `proofs.prove` alone."""

    place: re.Pattern[str]
    """Matches the one character left of a safe place, looking ahead at the one right of it."""
    atoms: re.Pattern[str] | None
    """At each position an added token begins, captures the longest such; None if no added token
    has a safe place inside."""
    max_atom_chars: int
    """Length of the longest of those tokens."""

    @classmethod
    def of(cls, place: str, added: Iterable[str]) -> CutRule:
        """With the `place` pattern, and the texts of all `added` tokens."""
        pattern = re.compile(place)
        # A token without a place inside can hold no cut, so it need not be looked for.
        atoms = {text for text in added if pattern.search(text)}
        ranked = sorted(atoms, key=len, reverse=True)
        either = "|".join(re.escape(text) for text in ranked)
        found = re.compile(f"(?=({either}))") if ranked else None
        return cls(pattern, found, len(ranked[0]) if ranked else 0)

    @property
    def lookahead_chars(self) -> int:
        """Characters right of a place that have to be known before it may be cut at."""
        return max(1, self.max_atom_chars - 1)

    def first_cut(self, text: str, start: int) -> int | None:
        """The first safe place of `text` at `start` (at least 1) or behind, None without any.

        Places too near to the end to be judged are left out: the text may go on.
        """
        last = len(text) - self.lookahead_chars
        for match in self.place.finditer(text, max(start, 1) - 1):
            if match.end() > last:
                return None
            if not self._inside_atom(text, match.end()):
                return match.end()
        return None

    def _inside_atom(self, text: str, cut: int) -> bool:
        if self.atoms is None:
            return False
        first = max(0, cut - self.max_atom_chars + 1)
        found = self.atoms.finditer(text, first, cut + self.max_atom_chars - 1)
        return any(atom.start() < cut < atom.end(1) for atom in found)
