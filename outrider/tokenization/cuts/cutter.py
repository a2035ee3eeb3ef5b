"""Cuts a text that arrives piece by piece."""

from __future__ import annotations

from outrider.errors import FrameTooLargeError
from outrider.tokenization.cuts.rules import CutRule


class Cutter:
    """One text's parts, in order. The parts depend on the text alone, not on how it arrived.

    Each part ends at the first safe place at or behind `target_chars`; what cannot be cut is held
    back, up to `max_chars` and what arrived with it.
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
                f"{self._max_chars} may: send shorter texts."
            )
        return parts

    def finish(self) -> str:
        """The last part, empty if the text ended with the one before; the cutter starts anew."""
        last = "".join(self._pieces)
        self._keep("")
        return last

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
        """What was searched is not searched again, and a long rest not joined for every piece.

        Steps are short for the event loop's sake: a search holds it.
        """
        assert self._rule is not None
        judged = self._num_held - self._rule.lookahead_chars
        self._searched = max(self._target_chars, judged + 1)
        grown = self._num_held + self._target_chars // 4
        self._next_search = min(max(self._target_chars, grown), self._max_chars)
