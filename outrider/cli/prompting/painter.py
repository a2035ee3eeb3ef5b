"""Paints committed text with provisional text dimmed behind it, corrected in place (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.cells import cell_len

_DIM, _PLAIN, _ERASE_BELOW = "\x1b[2m", "\x1b[22m", "\x1b[J"
_UNDERLINED, _NOT_UNDERLINED = "\x1b[4m", "\x1b[24m"


class Painter:
    """Turns text states into terminal output (ECMA-48 control sequences).

    Lines are broken here, one column before the terminal would do it, so that the cursor's place
    is always known and the provisional part can be erased even after it wrapped.
    """

    def __init__(self, width: int) -> None:
        self._last_column = max(1, width - 1)
        self._num_chars = 0
        self._column = 0
        self._rows_below = 0
        self._provisional_column = 0

    def paint(
        self, committed: str, provisional: str, marked: Sequence[tuple[int, int]] = ()
    ) -> str:
        """Output that appends `committed` and shows `provisional` behind all committed text.

        `marked` are the stretches [begin, end) of all committed text that are underlined.
        """
        erase = self._erase()
        text = "".join(self._runs(committed, marked))
        tail, self._provisional_column, self._rows_below = self._wrap(provisional, self._column)
        return erase + text + (f"{_DIM}{tail}{_PLAIN}" if tail else "")

    def _runs(self, committed: str, marked: Sequence[tuple[int, int]]) -> Iterator[str]:
        """`committed`, wrapped, with the marked stretches of it underlined."""
        first, self._num_chars = self._num_chars, self._num_chars + len(committed)
        stop = self._num_chars
        places = {at for begin, end in marked for at in range(max(begin, first), min(end, stop))}
        for is_marked, run in groupby(enumerate(committed, first), lambda at: at[0] in places):
            shown, self._column, _ = self._wrap("".join(char for _, char in run), self._column)
            yield f"{_UNDERLINED}{shown}{_NOT_UNDERLINED}" if is_marked else shown

    def _erase(self) -> str:
        if self._rows_below == 0 and self._provisional_column == self._column:
            return ""
        up = f"\x1b[{self._rows_below}A" if self._rows_below else ""
        right = f"\x1b[{self._column}C" if self._column else ""
        return f"{up}\r{right}{_ERASE_BELOW}"

    def _wrap(self, text: str, column: int) -> tuple[str, int, int]:
        pieces: list[str] = []
        rows = 0
        for char in text:
            if char == "\n":
                pieces.append("\n")
                column, rows = 0, rows + 1
                continue
            shown = _printable(char)
            cells = cell_len(shown)
            if column + cells > self._last_column:
                pieces.append("\n")
                column, rows = 0, rows + 1
            pieces.append(shown)
            column += cells
        return "".join(pieces), column, rows


def _printable(char: str) -> str:
    """Control characters are shown, not obeyed: a model must not drive the terminal."""
    if char == "\t":
        return "    "
    return char if char.isprintable() or ord(char) >= 0xA0 else "\N{REPLACEMENT CHARACTER}"
