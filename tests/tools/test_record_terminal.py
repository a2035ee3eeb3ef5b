"""What a terminal showed, row by row, and the picture made of it."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

from tools.record_terminal import (
    COLUMNS,
    RECORDINGS,
    ROWS,
    Output,
    Shown,
    _run,
    shown,
    svg,
    with_shown_state_home,
)

OUTPUTS = (
    Output(1.0, b"$ chat\r\n"),
    Output(2.0, b"The \x1b[2msea is\x1b[22m"),
    Output(3.0, b"\x1b[6D\x1b[Jsky <\r\n"),
)


def test_a_row_is_shown_from_when_it_was_printed_until_it_changes() -> None:
    rows, duration_s = shown(OUTPUTS)
    end_s = duration_s
    assert end_s > 3.0
    assert sorted(rows, key=lambda it: (it.row, it.begin_s)) == [
        Shown(0, (("$ chat", "default"),), 1.0, end_s),
        Shown(1, (("The ", "default"), ("sea is", "faint")), 2.0, 3.0),
        Shown(1, (("The sky <", "default"),), 3.0, end_s),
    ]


def test_the_picture_shows_its_last_state_where_nothing_moves() -> None:
    rows, duration_s = shown(OUTPUTS)
    root = ElementTree.fromstring(svg(rows, duration_s, "a & b"))
    name = "{http://www.w3.org/2000/svg}"
    texts = {"".join(text.itertext()): text.get("visibility") for text in root.iter(f"{name}text")}
    assert texts == {"$ chat": None, "The sea is": "hidden", "The sky <": None}
    changes = [change.attrib for change in root.iter(f"{name}set")]
    assert {it["to"] for it in changes} == {"hidden", "visible"}


def test_the_state_folder_of_the_recording_is_shown_as_the_users() -> None:
    printed = b"ready; logs in /tmp/recording/outrider/logs; try: outrider chat"
    expected = b"ready; logs in ~/.local/state/outrider/logs; try: outrider chat"
    assert with_shown_state_home(printed, Path("/tmp/recording")) == expected


def test_commands_see_a_terminal_of_the_pictures_size(tmp_path: Path) -> None:
    program = "import os; print('terminal', *os.get_terminal_size(1))"
    command = f'outrider --help >/dev/null; "{sys.executable}" -c "{program}"'
    seen = b"".join(data for _, data in _run(command, tmp_path))
    assert f"terminal {COLUMNS} {ROWS}".encode() in seen


def test_every_recording_is_of_outrider_commands() -> None:
    for commands in RECORDINGS.values():
        assert commands
        assert all(command.startswith("outrider ") for command in commands)
