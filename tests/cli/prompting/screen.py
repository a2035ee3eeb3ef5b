"""A terminal just large enough to check what the painter draws."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rich.cells import cell_len

_TOKEN = re.compile(r"\x1b\[(\d*)([A-Za-z])|(\r)|(\n)|(.)", re.DOTALL)


_STYLES = {
    2: {"dim": True},
    22: {"dim": False},
}
"""SGR parameters (ECMA-48, 8.3.117)."""


@dataclass(frozen=True)
class Style:
    """How a character is shown."""

    dim: bool = False


class Screen:
    """Cells of a terminal of `width` columns and unbounded height."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows: list[dict[int, tuple[str, Style]]] = [{}]
        self.row = 0
        self.column = 0
        self._style = Style()

    def write(self, text: str) -> None:
        for number, letter, carriage, newline, char in _TOKEN.findall(text):
            if letter:
                self._control(letter, int(number) if number else 1)
            elif carriage:
                self.column = 0
            elif newline:
                self._down()
            else:
                self._put(char)

    def _control(self, letter: str, number: int) -> None:
        if letter == "A":
            assert number <= self.row
            self.row -= number
        elif letter == "C":
            self.column = min(self.column + number, self.width - 1)
        elif letter == "m":
            self._style = replace(self._style, **_STYLES[number])
        elif letter == "J":
            keep = self.rows[self.row]
            self.rows[self.row] = {c: v for c, v in keep.items() if c < self.column}
            del self.rows[self.row + 1 :]
        else:
            raise AssertionError(f"unexpected control sequence {letter!r}")

    def _down(self) -> None:
        self.row, self.column = self.row + 1, 0
        if self.row == len(self.rows):
            self.rows.append({})

    def _put(self, char: str) -> None:
        cells = cell_len(char)
        assert self.column + cells < self.width, "the terminal would wrap by itself"
        self.rows[self.row][self.column] = (char, self._style)
        self.column += cells

    def text(self, *, dim: bool = False) -> str:
        """All characters of one style, without line breaks."""
        cells = (cell for row in self.rows for _, cell in sorted(row.items()))
        return "".join(char for char, style in cells if style.dim is dim)
