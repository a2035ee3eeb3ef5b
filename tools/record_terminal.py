"""Records commands in a terminal of 80 columns, and writes what was seen as an animated SVG.

    python -m tools.record_terminal quick-start docs/quick-start.svg
    python -m tools.record_terminal demo-wan docs/demo-wan.svg
    python -m tools.record_terminal demo-kill docs/demo-kill.svg

run the commands of the README's quick start, or a demo, on a mesh of its own, in a pseudo-terminal,
and keep every byte with its time. What is shown is what was printed, when it was printed, but for
three things: pauses longer than MAX_PAUSE_S are cut to that, the commands are typed at an even
pace, and the recording's temporary state folder is shown as the user's (SHOWN_STATE_HOME).
Needs the extra `bench` (pyte, the terminal emulator).
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyte
from pyte.screens import Char

COLUMNS: Final = 80
ROWS: Final = 24
MAX_PAUSE_S: Final = 1.5
TYPING_S: Final = 0.03
"""Time for one typed character."""
SHOWN_STATE_HOME: Final = "~/.local/state"
"""What stands for the temporary folder in which the mesh keeps its state while it is recorded."""
_REST_S: Final = 4.0
"""How long the last picture stays before the recording begins anew."""
_CELL_WIDTH, _CELL_HEIGHT, _MARGIN = 8.4, 18, 14
_COLORS: Final = {
    "default": "#d8dee9",
    "faint": "#7b88a1",
    "black": "#3b4252",
    "red": "#e07a84",
    "green": "#a3be8c",
    "brown": "#ebcb8b",
    "blue": "#81a1c1",
    "magenta": "#b48ead",
    "cyan": "#88c0d0",
    "white": "#e5e9f0",
}
"""By pyte's names of the eight colors (its yellow is called brown)."""
_BACKGROUND: Final = "#242933"

RECORDINGS: Final = {
    "quick-start": (
        "outrider up --detach",
        'outrider chat --prompt "Explain in three sentences why the sky is blue." --max-tokens 90',
        "outrider down",
    ),
    "demo-wan": ("outrider demo wan --rtt 150",),
    "demo-kill": ("outrider demo kill",),
}
"""The commands of each."""

Row = tuple[tuple[str, str], ...]
"""A row of the screen: runs of text, each with its color."""


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes that the terminal got."""

    at_s: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Shown:
    """A row that stood on the screen for a while."""

    row: int
    text: Row
    begin_s: float
    end_s: float


class _Screen(pyte.Screen):
    """pyte's screen knows no faint text (SGR 2): it is shown in a color of its own."""

    def select_graphic_rendition(self, *attributes: int, **options: Any) -> None:
        super().select_graphic_rendition(*attributes, **options)
        for attribute in attributes:
            if attribute in (2, 22):
                color = "faint" if attribute == 2 else "default"
                self.cursor.attrs = self.cursor.attrs._replace(fg=color)


def shown(outputs: Iterable[Output]) -> tuple[list[Shown], float]:
    """What each row showed, and for how long; and how long all of it takes, in seconds."""
    screen = _Screen(COLUMNS, ROWS)
    screen.set_mode(pyte.modes.LNM)
    stream = pyte.ByteStream(screen)
    since: dict[int, tuple[Row, float]] = {}
    rows: list[Shown] = []
    end_s = 0.0
    for output in outputs:
        stream.feed(output.data)
        end_s = output.at_s
        for number in sorted(screen.dirty):
            text = _row(screen, number)
            before, begin_s = since.get(number, ((), 0.0))
            if text != before:
                rows.append(Shown(number, before, begin_s, end_s))
                since[number] = (text, end_s)
        screen.dirty.clear()
    end_s += _REST_S
    rows.extend(Shown(number, text, begin_s, end_s) for number, (text, begin_s) in since.items())
    return [it for it in rows if it.text and it.end_s > it.begin_s], end_s


def _row(screen: pyte.Screen, number: int) -> Row:
    cells = [screen.buffer[number][column] for column in range(screen.columns)]
    while cells and not cells[-1].data.strip():
        cells.pop()
    runs = groupby(cells, _color)
    return tuple(("".join(cell.data for cell in run), color) for color, run in runs)


def _color(cell: Char) -> str:
    return cell.fg if cell.fg in _COLORS else "default"


def svg(rows: Sequence[Shown], duration_s: float, title: str) -> str:
    """An SVG 1.1 picture, animated by SMIL; where nothing moves, its last picture is seen."""
    width = round(COLUMNS * _CELL_WIDTH + 2 * _MARGIN)
    height = ROWS * _CELL_HEIGHT + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img"><title>{escape(title)}</title>',
        f'<rect width="{width}" height="{height}" rx="8" fill="{_BACKGROUND}"/>',
        '<animate id="loop" attributeName="opacity" values="1" begin="0s;loop.end"'
        f' dur="{duration_s:.2f}s"/>',
        '<g font-family="ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="14"'
        ' xml:space="preserve">',
        *(_text(it, duration_s) for it in rows),
        "</g></svg>\n",
    ]
    return "\n".join(parts)


def _text(it: Shown, duration_s: float) -> str:
    y = _MARGIN + it.row * _CELL_HEIGHT + 14
    column, runs = 0, []
    for text, color in it.text:
        x = _MARGIN + column * _CELL_WIDTH
        length = len(text) * _CELL_WIDTH
        runs.append(
            f'<tspan x="{x:.1f}" textLength="{length:.1f}" fill="{_COLORS[color]}">'
            f"{escape(text)}</tspan>"
        )
        column += len(text)
    is_last = it.end_s >= duration_s
    begin, span = (0.0, it.begin_s) if is_last else (it.begin_s, it.end_s - it.begin_s)
    # Rows of the last picture are hidden until their time; all others are shown for theirs.
    change = (
        f'<set attributeName="visibility" to="{"hidden" if is_last else "visible"}"'
        f' begin="loop.begin+{begin:.2f}s" dur="{span:.2f}s"/>'
        if span > 0
        else ""
    )
    visibility = "" if is_last else ' visibility="hidden"'
    return f'<text y="{y}"{visibility}>{"".join(runs)}{change}</text>'


def record(commands: Sequence[str], state_dir: Path) -> list[Output]:
    """Run `outrider` commands one after the other; what a terminal saw of it."""
    outputs: list[Output] = []
    now_s = 0.5
    for command in commands:
        outputs.append(Output(now_s, b"$ "))
        for char in command:
            now_s += TYPING_S
            outputs.append(Output(now_s, char.encode()))
        now_s += 0.3
        outputs.append(Output(now_s, b"\r\n"))
        for pause_s, data in _run(command, state_dir):
            now_s += min(pause_s, MAX_PAUSE_S)
            outputs.append(Output(now_s, with_shown_state_home(data, state_dir)))
        now_s += 0.5
    return outputs


def with_shown_state_home(data: bytes, state_dir: Path) -> bytes:
    """Output with the user's state folder in place of the recording's. Commands print a path in
    one piece."""
    return data.replace(str(state_dir).encode(), SHOWN_STATE_HOME.encode())


def _run(command: str, state_dir: Path) -> Iterable[tuple[float, bytes]]:
    """Output of one command: seconds since the output before, and bytes. Raises
    CalledProcessError."""
    script = command.replace("outrider", f'"{sys.executable}" -m outrider.cli.main', 1)
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (ROWS, COLUMNS))
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "LINES": str(ROWS),
        "TERM": "xterm-256color",
        "XDG_STATE_HOME": str(state_dir),
    }
    process = subprocess.Popen(
        ["/bin/sh", "-c", script], stdout=slave, stderr=slave, stdin=slave, env=environment
    )
    os.close(slave)
    before = time.monotonic()
    while True:
        readable, _, _ = select.select([master], [], [], 0.1)
        if not readable:
            if process.poll() is not None:
                break
            continue
        try:
            data = os.read(master, 65536)
        except OSError:
            # Linux says EIO when the last process has closed the terminal.
            break
        now = time.monotonic()
        yield now - before, data
        before = now
    os.close(master)
    if code := process.wait():
        raise subprocess.CalledProcessError(code, command)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    options = argparse.ArgumentParser(prog="python -m tools.record_terminal", description=__doc__)
    options.formatter_class = argparse.RawDescriptionHelpFormatter
    options.add_argument("recording", choices=RECORDINGS, help="what is recorded")
    options.add_argument("file", type=Path, help="the SVG to write")
    asked = options.parse_args(arguments)
    commands = RECORDINGS[asked.recording]
    with tempfile.TemporaryDirectory(prefix="outrider-record-") as folder:
        outputs = record(commands, Path(folder))
    rows, duration_s = shown(outputs)
    asked.file.write_text(svg(rows, duration_s, "; ".join(commands)), encoding="utf-8")
    print(f"{asked.file}: {duration_s:.1f} s, {len(rows)} rows, {asked.file.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
