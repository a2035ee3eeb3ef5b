"""Records commands in a terminal, and writes what was seen as animated SVGs.

    python -m tools.record_terminal             # all of them, into docs/
    python -m tools.record_terminal demo-kill   # docs/demo-kill.svg alone

runs the commands of the README's quick start, or a demo, or `outrider status --watch` while chats
go on, on a mesh of its own, in a pseudo-terminal, and keeps every byte with its time. What is shown
is what was printed, when it was printed, but for three things: pauses longer than MAX_PAUSE_S, also
those in which a spinner turns, are cut to that, the commands are typed at an even pace, and the
recording's temporary state folder is shown as the user's (SHOWN_STATE_HOME).
Needs the extra `bench` (pyte, the terminal emulator), and the ports 4433 and 8080 free.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyte
from pyte.screens import Char

DOCS: Final = Path(__file__).parents[1] / "docs"
MAX_PAUSE_S: Final = 1.5
TYPING_S: Final = 0.03
"""Time for one typed character."""
SHOWN_STATE_HOME: Final = "~/.local/state"
"""Shown in place of the temporary folder in which the recorded mesh keeps its state."""
_INTERRUPTED: Final = (130, -signal.SIGINT)
"""Exit statuses of a command ended by Ctrl-C, or of its shell."""
_SPINNER: Final = re.compile(rb"\xe2[\xa0-\xa3][\x80-\xbf]")
"""A Braille pattern (U+2800 to U+28FF) in UTF-8, of which rich makes its spinners."""
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
"""Colours by pyte's names of the eight colors (its yellow is called brown)."""
_BACKGROUND: Final = "#242933"


@dataclass(frozen=True, slots=True)
class Recording:
    """Settings of one recording."""

    commands: tuple[str, ...]
    columns: int = 80
    rows: int = 24
    load: str = ""
    """An `outrider` command that runs unseen beside the last one, and is stopped with it."""
    ctrl_c_after_s: float = 0.0
    """Seconds after which the last command is interrupted; 0: it ends by itself."""
    unseen_end: str = ""
    """A command that cleans up afterwards."""


RECORDINGS: Final = {
    "quick-start": Recording(
        (
            "outrider up --detach",
            'outrider chat --prompt "What is photosynthesis?" --max-tokens 90',
            "outrider down",
        )
    ),
    "demo-wan": Recording(("outrider demo wan",)),
    "demo-kill": Recording(("outrider demo kill",)),
    "status-watch": Recording(
        ("outrider up --detach", "outrider status --watch --interval 1"),
        columns=150,
        rows=30,
        load="outrider chat --prompt-file {prompts} --parallel 4 --max-tokens 100 --json",
        ctrl_c_after_s=15.0,
        unseen_end="outrider down",
    ),
}
_PROMPTS: Final = (
    *("Why is the sky blue?", "What is a tide?", "Tell me of the moon.", "Why do leaves fall?"),
    *("What is a comet?", "How do bees see?", "What is rain?", "Why is the sea salty?"),
)
"""Prompts of the load, repeated without end."""
_NUM_PROMPTS: Final = 256

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


def shown(
    outputs: Iterable[Output], columns: int = 80, num_rows: int = 24
) -> tuple[list[Shown], float]:
    """Each row of the screen with the time that it was shown, and the length of the whole recording
    in seconds. Rows shown for less than a hundredth of a second, the picture's unit of time, are
    left out."""
    screen = _Screen(columns, num_rows)
    screen.set_mode(pyte.modes.LNM)
    stream = pyte.ByteStream(screen)
    since: dict[int, tuple[Row, float]] = {}
    rows: list[Shown] = []
    end_s = 0.0
    for output in outputs:
        stream.feed(output.data)
        end_s = round(output.at_s, 2)
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


def svg(
    rows: Sequence[Shown], duration_s: float, title: str, columns: int = 80, num_rows: int = 24
) -> str:
    """An SVG 1.1 picture, animated by SMIL; where nothing moves, its last picture is seen."""
    width = round(columns * _CELL_WIDTH + 2 * _MARGIN)
    height = num_rows * _CELL_HEIGHT + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img"><title>{escape(title)}</title>',
        f'<rect width="{width}" height="{height}" rx="8" fill="{_BACKGROUND}"/>',
        '<animate id="loop" attributeName="opacity" values="1" begin="0s;loop.end"'
        f' dur="{duration_s:.2f}s"/>',
        '<g font-family="ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="14">',
        *(_text(it, duration_s) for it in rows),
        "</g></svg>\n",
    ]
    return "\n".join(parts)


def _text(it: Shown, duration_s: float) -> str:
    y = _MARGIN + it.row * _CELL_HEIGHT + 14
    column, runs = 0, []
    for text, color in it.text:
        # What becomes of several blanks differs between renderers: they are left out.
        for part in re.finditer(r"[^ ]+( [^ ]+)*", text):
            x = _MARGIN + (column + part.start()) * _CELL_WIDTH
            length = len(part[0]) * _CELL_WIDTH
            runs.append(
                f'<tspan x="{x:.1f}" textLength="{length:.1f}" fill="{_COLORS[color]}">'
                f"{escape(part[0])}</tspan>"
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


def record(recording: Recording, state_dir: Path) -> list[Output]:
    """Run the recording's commands one after the other; returns the terminal's output with its
    times."""
    outputs: list[Output] = []
    now_s = 0.5
    for command in recording.commands:
        is_last = command == recording.commands[-1]
        outputs.append(Output(now_s, b"$ "))
        for char in command:
            now_s += TYPING_S
            outputs.append(Output(now_s, char.encode()))
        now_s += 0.3
        outputs.append(Output(now_s, b"\r\n"))
        with _load(recording.load if is_last else "", state_dir):
            printed = _run(command, state_dir, recording, is_last=is_last)
            for pause_s, data in without_waits(printed):
                now_s += pause_s
                outputs.append(Output(now_s, with_shown_state_home(data, state_dir)))
        now_s += 0.5
    if recording.unseen_end:
        subprocess.run(_script(recording.unseen_end), env=_environment(state_dir), check=True)
    return outputs


def without_waits(printed: Iterable[tuple[float, bytes]]) -> Iterable[tuple[float, bytes]]:
    """Output with the seconds before each piece. A pause lasts MAX_PAUSE_S at most, and so does a
    spinner that turns."""
    turning_s = 0.0
    for pause_s, data in printed:
        turning_s = turning_s + pause_s if _SPINNER.search(data) else 0.0
        yield (0.0 if turning_s > MAX_PAUSE_S else min(pause_s, MAX_PAUSE_S)), data


@contextlib.contextmanager
def _load(command: str, state_dir: Path) -> Iterator[None]:
    if not command:
        yield
        return
    prompts = state_dir / "prompts.jsonl"
    lines = [json.dumps(_PROMPTS[at % len(_PROMPTS)]) for at in range(_NUM_PROMPTS)]
    prompts.write_text("\n".join(lines), encoding="utf-8")
    with subprocess.Popen(
        _script(command.format(prompts=prompts)),
        env=_environment(state_dir),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def _script(command: str) -> list[str]:
    program = command.replace("outrider", f'"{sys.executable}" -m outrider.cli.main', 1)
    # Whoever records in the background ignores SIGINT, and children inherit that.
    return ["env", "--default-signal=INT", "/bin/sh", "-c", program]


def _environment(state_dir: Path) -> dict[str, str]:
    return {**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": str(state_dir)}


def with_shown_state_home(data: bytes, state_dir: Path) -> bytes:
    """Output with the user's state folder in place of the recording's. Commands print a path in
    one piece."""
    return data.replace(str(state_dir).encode(), SHOWN_STATE_HOME.encode())


def _run(
    command: str, state_dir: Path, recording: Recording, *, is_last: bool
) -> Iterable[tuple[float, bytes]]:
    """Output of one command: seconds since the output before, and bytes. Raises
    CalledProcessError."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (recording.rows, recording.columns))
    size = {"COLUMNS": str(recording.columns), "LINES": str(recording.rows)}
    process = subprocess.Popen(
        _script(command),
        stdout=slave,
        stderr=slave,
        stdin=slave,
        env=_environment(state_dir) | size,
        start_new_session=True,
    )
    os.close(slave)
    before = began = time.monotonic()
    is_cut = False
    while True:
        limit_s = recording.ctrl_c_after_s if is_last else 0.0
        if limit_s and not is_cut and time.monotonic() - began > limit_s:
            os.killpg(process.pid, signal.SIGINT)
            is_cut = True
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
    code = process.wait()
    if code not in (_INTERRUPTED if is_cut else (0,)):
        raise subprocess.CalledProcessError(code, command)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    options = argparse.ArgumentParser(prog="python -m tools.record_terminal", description=__doc__)
    options.formatter_class = argparse.RawDescriptionHelpFormatter
    options.add_argument("recordings", nargs="*", metavar="NAME", help=", ".join(RECORDINGS))
    options.add_argument("--folder", type=Path, default=DOCS, help="where NAME.svg is written")
    asked = options.parse_args(arguments)
    if unknown := set(asked.recordings) - set(RECORDINGS):
        options.error(f"there is no recording {min(unknown)}; there are {', '.join(RECORDINGS)}")
    for name in asked.recordings or RECORDINGS:
        _write(RECORDINGS[name], asked.folder / f"{name}.svg")
    return 0


def _write(recording: Recording, file: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="outrider-record-") as folder:
        outputs = record(recording, Path(folder))
    size = (recording.columns, recording.rows)
    rows, duration_s = shown(outputs, *size)
    title = "; ".join(recording.commands)
    file.write_text(svg(rows, duration_s, title, *size), encoding="utf-8")
    print(f"{file}: {duration_s:.1f} s, {len(rows)} rows, {file.stat().st_size} bytes")


if __name__ == "__main__":
    raise SystemExit(main())
