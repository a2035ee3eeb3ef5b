"""Paints committed text with provisional text dimmed behind it, corrected in place (pure)."""

from __future__ import annotations

from rich.cells import cell_len

_DIM, _PLAIN, _ERASE_BELOW = "\x1b[2m", "\x1b[22m", "\x1b[J"
_CLEAR = "\x1b[H\x1b[J"
"""Clears the screen only: lines that have scrolled away stay, and nothing is added to them."""


class Painter:
    """Turns text states into terminal output (ECMA-48 control sequences).

    Lines are broken here, one column before the terminal would do it, so that the cursor's place
    is always known and the provisional part can be erased even after it wrapped.
    """

    def __init__(self, width: int, height: int = 24, before: str = "") -> None:
        """`width` in columns, `height` in rows; `before` is what stands above the text."""
        self._last_column = max(1, width - 1)
        self._height = max(2, height)
        self._before = before
        self._committed = ""
        self._column = 0
        self._rows_below = 0
        self._provisional_column = 0

    @property
    def shown(self) -> str:
        """All text that is final, with what stood above it."""
        return self._before + self._committed

    def paint(self, committed: str, provisional: str) -> str:
        """Output that appends `committed` and shows `provisional` behind all committed text, as
        much of it as fits the terminal: what has scrolled away cannot be taken back."""
        erase = self._erase()
        self._committed += committed
        text, self._column, _ = self._wrap(committed, self._column)
        tail, self._provisional_column, self._rows_below = self._wrap(
            provisional, self._column, max_rows=self._height - 1
        )
        return erase + text + (f"{_DIM}{tail}{_PLAIN}" if tail else "")

    def resize(self, width: int, height: int) -> str:
        """The terminal has this size now: output to be written before any other.

        Some terminals break lines anew and some do not, so where the cursor stands is not known;
        the screen is cleared and shows the end of the text. Empty if the size is the same.
        """
        if (max(1, width - 1), max(2, height)) == (self._last_column, self._height):
            return ""
        self._last_column, self._height = max(1, width - 1), max(2, height)
        text = self._before + self._committed
        begin = self._beginning_of_last_rows(text, self._height - 1)
        above, self._column, _ = self._wrap(self._before[begin:], 0)
        self._rows_below = 0
        unpainted = self._committed[max(0, begin - len(self._before)) :]
        shown, self._column, _ = self._wrap(unpainted, self._column)
        self._provisional_column = self._column
        return _CLEAR + above + shown

    def _beginning_of_last_rows(self, text: str, num_rows: int) -> int:
        """Index of the character of `text` that begins its last `num_rows` rows."""
        begins, column = [0], 0
        for at, char in enumerate(text):
            if char == "\n":
                begins.append(at + 1)
                column = 0
                continue
            cells = cell_len(_printable(char))
            if column + cells > self._last_column:
                begins.append(at)
                column = 0
            column += cells
        return begins[-num_rows:][0]

    def _erase(self) -> str:
        if self._rows_below == 0 and self._provisional_column == self._column:
            return ""
        up = f"\x1b[{self._rows_below}A" if self._rows_below else ""
        right = f"\x1b[{self._column}C" if self._column else ""
        return f"{up}\r{right}{_ERASE_BELOW}"

    def _wrap(self, text: str, column: int, max_rows: int | None = None) -> tuple[str, int, int]:
        """Lines of at most a row, from `column` on, the column behind them, and the rows below the
        first. No more than `max_rows` rows: the rest is left out."""
        pieces: list[str] = []
        rows = 0
        for char in text:
            shown = "" if char == "\n" else _printable(char)
            cells = cell_len(shown)
            if char == "\n" or column + cells > self._last_column:
                if max_rows is not None and rows + 1 >= max_rows:
                    break
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
