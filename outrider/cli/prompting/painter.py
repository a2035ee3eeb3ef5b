"""Paints committed text with provisional text dimmed behind it, corrected in place (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.cells import cell_len

_DIM, _PLAIN, _ERASE_BELOW = "\x1b[2m", "\x1b[22m", "\x1b[J"
_CLEAR = "\x1b[H\x1b[J"
"""The screen alone: what has scrolled away stays, and nothing is added to it."""


class Painter:
    """Turns text states into terminal output (ECMA-48 control sequences).

    Lines are broken here, between words and one column before the terminal would do it, so that the
    cursor's place is always known and the provisional part can be erased even after it wrapped. The
    last committed word may still grow, and then belong on the next row: it is painted again with
    each state, as the provisional text is.
    """

    def __init__(self, width: int, height: int = 24, before: str = "") -> None:
        """`width` in columns, `height` in rows; `before`: the lines that stand above the text, each
        with its end."""
        self._last_column = max(1, width - 1)
        self._height = max(2, height)
        self._before = before
        self._committed = ""
        self._settled = 0
        """So many characters of the committed text are painted for good."""
        self._column = 0
        """Column at which those characters end; text that may be erased begins here."""
        self._rows_below = 0
        """Rows from there to the end of the text that may be erased."""
        self._end_column = 0
        """Column at which that text ends."""

    @property
    def shown(self) -> str:
        """All text that is final, with the lines above it."""
        return self._before + self._committed

    def paint(self, committed: str, provisional: str) -> str:
        """Output that appends `committed` and shows `provisional` behind all committed text, as
        much of it as fits the terminal: what has scrolled away cannot be taken back."""
        erase = self._erase()
        self._committed += committed
        return erase + self._settle() + self._tail(provisional)

    def resize(self, width: int, height: int) -> str:
        """The terminal has this size now: output to be written before any other.

        Some terminals break lines anew and some do not, so where the cursor stands is not known;
        the screen is cleared and shows the end of the text. Empty if the size is the same.
        """
        if (max(1, width - 1), max(2, height)) == (self._last_column, self._height):
            return ""
        self._last_column, self._height = max(1, width - 1), max(2, height)
        rows, _ = self._rows(self.shown, 0)
        begin = rows[-(self._height - 1) :][0][0]
        above, self._column = self._wrapped(self._before[begin:], 0)
        self._settled = max(0, begin - len(self._before))
        return _CLEAR + above + self._settle() + self._tail("")

    def _erase(self) -> str:
        if self._rows_below == 0 and self._end_column == self._column:
            return ""
        up = f"\x1b[{self._rows_below}A" if self._rows_below else ""
        right = f"\x1b[{self._column}C" if self._column else ""
        return f"{up}\r{right}{_ERASE_BELOW}"

    def _settle(self) -> str:
        """Paint what is committed, but for a last word that may grow and fits a row."""
        fresh = self._committed[self._settled :]
        begin = len(fresh)
        while begin and _is_in_word(fresh[begin - 1]):
            begin -= 1
        # Rows that a longer word fills are settled: such a word is broken in any case.
        begin += (len(fresh) - begin) // self._last_column * self._last_column
        self._settled += begin
        text, self._column = self._wrapped(fresh[:begin], self._column)
        return text

    def _tail(self, provisional: str) -> str:
        """Paint the last word and the provisional text, and remember where they end."""
        word = self._committed[self._settled :]
        text = word + provisional
        max_rows = max(2, self._height - 1)
        rows, self._end_column = self._rows(text, self._column, max_rows)
        self._rows_below = len(rows) - 1
        pieces: list[str] = []
        is_dim = False
        for number, (begin, end) in enumerate(rows):
            pieces.append("\n" if number else "")
            if end > len(word) and not is_dim:
                dim_from = max(begin, len(word))
                pieces += [_shown(text[begin:dim_from]), _DIM]
                begin, is_dim = dim_from, True
            pieces.append(_shown(text[begin:end]))
        return "".join(pieces) + (_PLAIN if is_dim else "")

    def _wrapped(self, text: str, column: int) -> tuple[str, int]:
        """`text` in rows, from `column` on, and the column behind it."""
        rows, column = self._rows(text, column)
        return "\n".join(_shown(text[begin:end]) for begin, end in rows), column

    def _rows(
        self, text: str, column: int, max_rows: int | None = None
    ) -> tuple[list[tuple[int, int]], int]:
        """First and last position of each row of `text`, the first row starting at `column`, and
        the column after the last. A blank for which a row has no room is left out, and so is text
        beyond `max_rows` rows."""
        rows: list[tuple[int, int]] = []
        begin = end = 0
        for first, last in _pieces(text):
            piece = text[first:last]
            cells = cell_len(_shown(piece))
            if piece != "\n" and (piece in _BLANKS or column + cells <= self._last_column):
                if column + cells <= self._last_column:
                    end = last
                column = min(column + cells, self._last_column)
                continue
            parts = [(first, last)]
            if cells > self._last_column:
                # A word that no row has room for; all of its characters take one cell.
                step = self._last_column
                parts = [(at, min(at + step, last)) for at in range(first, last, step)]
            for part in parts:
                if column or piece == "\n" or part != parts[0]:
                    if len(rows) + 1 == max_rows:
                        return [*rows, (begin, end)], column
                    rows.append((begin, end))
                    begin, column = part[0], 0
                if piece == "\n":
                    begin = end = last
                else:
                    end = part[1]
                    column = cell_len(_shown(text[slice(*part)]))
        return [*rows, (begin, end)], column


_BLANKS: Final = (" ", "\t")


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """First and last position of each part that stays on one row: a word, or a single other
    character."""
    begin = 0
    for at, char in enumerate(text):
        if not _is_in_word(char):
            if begin < at:
                yield begin, at
            yield at, at + 1
            begin = at + 1
    if begin < len(text):
        yield begin, len(text)


def _is_in_word(char: str) -> bool:
    """Whether a row may not end behind it: it is no blank, and not of a script that is written
    without them, whose characters take two cells."""
    return char not in (*_BLANKS, "\n") and cell_len(_shown(char)) < 2


def _shown(text: str) -> str:
    """Control characters are shown, not obeyed: a model must not drive the terminal."""
    return "".join(
        "    "
        if char == "\t"
        else char
        if char.isprintable() or ord(char) >= 0xA0
        else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )
