"""Cuts a text such that the ids of its parts, joined, are the whole text's ids. Pure.

A safe place lies between two characters that nothing of the tokenizer spans: no match of its
pre-tokenizer, no merge, no added token. cut_proofs.py determines a tokenizer's safe places.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from outrider.errors import FrameTooLargeError
from outrider.fair_work.job_queue import SLICE_SIZE

SLICE_CHARS: Final = SLICE_SIZE
"""Characters of a long text that are tokenized at a time: 14 ms of the reference backend."""
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
    """The places at which one tokenizer's texts may be cut. Immutable; made only by
    `cut_proofs.prove`."""

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

        Places too near to the end to be judged are left out: more text may follow.
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


class Cutter:
    """One text's parts, in order. The parts depend only on the text, not on how it arrived.

    Each part ends at the first safe place at or behind `target_chars`; text without a safe place is
    held back, up to `max_chars` plus the latest piece.
    """

    def __init__(self, rule: CutRule | None, *, target_chars: int, max_chars: int) -> None:
        """Without a `rule` the text is never cut. `max_chars` is above `target_chars`."""
        if not 0 < target_chars < max_chars:
            raise ValueError(f"a part has {target_chars} characters, and at most {max_chars}")
        self._rule = rule
        self._target_chars = target_chars
        self._max_chars = max_chars
        self._pieces: list[str] = []
        self._num_held = 0
        self._searched = target_chars
        """No safe place lies between the target and here."""
        self._next_search = target_chars

    @property
    def num_held_chars(self) -> int:
        """Characters that wait for a safe place."""
        return self._num_held

    def feed(self, text: str) -> list[str]:
        """The parts that `text` completes.

        Raises FrameTooLargeError when more than `max_chars` hold no safe place; the cutter is
        of no use any more then.
        """
        if text:
            self._pieces.append(text)
            self._num_held += len(text)
        parts = self._cut() if self._rule and self._num_held > self._next_search else []
        if self._num_held > self._max_chars:
            self._pieces.clear()
            raise FrameTooLargeError(
                f"{self._num_held} characters hold no place where the text may be cut, at most "
                f"{self._max_chars} may; send shorter texts"
            )
        return parts

    def finish(self) -> list[str]:
        """The last parts, of which the very last is empty if the text ended with the one before;
        the cutter starts anew."""
        # What came since the latest search may complete parts, too.
        parts = self._cut() if self._rule else []
        last = "".join(self._pieces)
        self._keep("")
        return [*parts, last]

    def _cut(self) -> list[str]:
        assert self._rule is not None
        held = "".join(self._pieces)
        parts: list[str] = []
        begin, searched = 0, self._searched
        while (cut := self._rule.first_cut(held, begin + searched)) is not None:
            parts.append(held[begin:cut])
            begin, searched = cut, self._target_chars
        self._keep(held[begin:])
        self._remember()
        return parts

    def _keep(self, rest: str) -> None:
        self._pieces = [rest] if rest else []
        self._num_held = len(rest)
        self._searched = self._next_search = self._target_chars

    def _remember(self) -> None:
        """Note what was searched, so that it is not searched again, nor a long rest joined for
        every piece.

        Steps are short, since a search holds the event loop.
        """
        assert self._rule is not None
        judged = self._num_held - self._rule.lookahead_chars
        self._searched = max(self._target_chars, judged + 1)
        grown = self._num_held + self._target_chars // 4
        self._next_search = min(max(self._target_chars, grown), self._max_chars)
