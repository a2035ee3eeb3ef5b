"""Recordings of a terminal: what it showed, and what browsers make of the picture of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tools import record_terminal
from tools.record_terminal import RECORDINGS, Output, Shown, shown, svg
from tools.renderers import renderer, renderer_environment

COLUMNS, ROWS = 24, 5
OUTPUTS: Final = (
    Output(1.0, b"$ chat\r\n"),
    Output(2.0, b"a    b \x1b[2m  |sea| is\x1b[22m"),
    Output(2.001, b"\r\x1b[Jgone at once"),
    Output(2.002, b"\r\x1b[Ja    b  "),
    Output(3.0, b"\x1b[2mand   more\x1b[22m\r\n   x  <y>"),
)


def test_a_row_is_shown_from_when_it_was_printed_until_it_changes() -> None:
    rows, end_s = shown(OUTPUTS, COLUMNS, ROWS)
    assert sorted(rows, key=lambda it: (it.row, it.begin_s)) == [
        Shown(0, (("$ chat", "default"),), 1.0, end_s),
        Shown(1, (("a    b", "default"),), 2.0, 3.0),
        Shown(1, (("a    b  ", "default"), ("and   more", "faint")), 3.0, end_s),
        Shown(2, (("   x  <y>", "default"),), 3.0, end_s),
    ], "what stood there for a millisecond is left out"


@pytest.mark.parametrize("file", [record_terminal.DOCS / f"{name}.svg" for name in RECORDINGS])
def test_pictures_have_nothing_that_browsers_read_in_several_ways(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert "xml:space" not in text, "Chromium gave it up"
    assert 'dur="0.00s"' not in text, "no duration of SVG: it counts as one without an end"


# As rendered.

Page = Callable[[Path, Path], Sequence[str]]
"""The command that renders a file to a PNG of its size."""


def _chromium(page: Path, png: Path) -> Sequence[str]:
    return (
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *(f"--user-data-dir={png.parent / 'profile'}", f"--screenshot={png}"),
        # The window's own bars are a part of its height.
        *(f"--window-size={_size()[0]},{2 * _size()[1] + 200}", page.as_uri()),
    )


def _rsvg(page: Path, png: Path) -> Sequence[str]:
    return ("rsvg-convert", f"--output={png}", str(page))


RENDERERS: Final[Mapping[str, Page]] = {"chromium": _chromium, "rsvg-convert": _rsvg}


def _size() -> tuple[int, int]:
    """Of the picture, in pixels."""
    margins = 2 * record_terminal._MARGIN
    width = round(COLUMNS * record_terminal._CELL_WIDTH + margins)
    return width, ROWS * record_terminal._CELL_HEIGHT + margins


def seen(name: str, page: Path, folder: Path) -> list[str]:
    """Where a rendered page has ink, row by row: # for each cell of the terminal that has."""
    png = folder / "picture.png"
    program, *arguments = RENDERERS[name](page, png)
    done = subprocess.run(
        (_program(program), *arguments),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=renderer_environment(folder),
    )
    assert png.exists(), done.stderr[-2000:]
    pixels = np.asarray(Image.open(png).convert("RGB"), dtype=np.int64)
    return [
        "".join("#" if _has_ink(pixels, row, column) else " " for column in range(COLUMNS)).rstrip()
        for row in range(ROWS)
    ]


def _program(name: str) -> str:
    found = renderer(name)
    if found is None:
        pytest.fail(f"there is no {name}: install it, or run tools/setup.sh dev on Debian")
    return str(found)


def _has_ink(pixels: NDArray[np.int64], row: int, column: int) -> bool:
    """But for its outermost pixels, into which a neighbour may reach."""
    margin, width = record_terminal._MARGIN, record_terminal._CELL_WIDTH
    top = margin + row * record_terminal._CELL_HEIGHT
    left = margin + column * width
    cell = pixels[top : top + 18, round(left + 1.5) : round(left + width - 1.5)]
    ground = [int(record_terminal._BACKGROUND[at : at + 2], 16) for at in (1, 3, 5)]
    return bool((abs(cell - ground).max(axis=2) > 40).any())


def wanted(rows: Sequence[Shown], at_s: float) -> list[str]:
    """The same of what the terminal showed at that time."""
    found = [""] * ROWS
    for it in rows:
        if it.begin_s <= at_s < it.end_s:
            text = "".join(part for part, _ in it.text)
            found[it.row] = "".join(" " if char == " " else "#" for char in text).rstrip()
    return found


@pytest.mark.parametrize("name", RENDERERS)
def test_every_character_stands_in_its_cell(name: str, tmp_path: Path) -> None:
    rows, end_s = shown(OUTPUTS, COLUMNS, ROWS)
    last = [it for it in rows if it.end_s == end_s]
    page = tmp_path / "last.svg"
    still = [Shown(it.row, it.text, 0.0, end_s) for it in last]
    page.write_text(svg(still, end_s, "a & b", COLUMNS, ROWS), encoding="utf-8")
    assert seen(name, page, tmp_path) == wanted(rows, end_s - 0.1)


@pytest.mark.parametrize("at_s", [0.5, 1.5, 2.5, 3.5])
def test_the_picture_is_what_the_terminal_showed_then(at_s: float, tmp_path: Path) -> None:
    rows, end_s = shown(OUTPUTS, COLUMNS, ROWS)
    page = tmp_path / "then.html"
    page.write_text(
        '<body style="margin:0;overflow:hidden">'
        + svg(rows, end_s, "then", COLUMNS, ROWS)
        + "<script>const it = document.querySelector('svg');"
        f"it.pauseAnimations(); it.setCurrentTime({at_s})</script>",
        encoding="utf-8",
    )
    assert seen("chromium", page, tmp_path) == wanted(rows, at_s)
