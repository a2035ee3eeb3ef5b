"""What a terminal showed, row by row, and the picture made of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools.record_terminal import (
    RECORDINGS,
    Output,
    Recording,
    Shown,
    _run,
    main,
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
    recording = Recording((command,), columns=97, rows=31)
    seen = b"".join(data for _, data in _run(command, tmp_path, recording, is_last=True))
    assert b"terminal 97 31" in seen


def test_every_recording_is_of_outrider_commands() -> None:
    for recording in RECORDINGS.values():
        assert recording.commands
        others = filter(None, (recording.load, recording.unseen_end))
        assert all(it.startswith("outrider ") for it in (*recording.commands, *others))


def test_a_command_that_never_ends_is_interrupted(tmp_path: Path) -> None:
    file = tmp_path / "waits.toml"
    os.mkfifo(file)
    command = f"outrider config validate {file}"
    recording = Recording((command,), ctrl_c_after_s=0.1)
    with subprocess.Popen(["/bin/sh", "-c", f'exec 3>"{file}"; exec sleep 60']) as holder:
        try:
            for _ in _run(command, tmp_path, recording, is_last=True):
                pass
            assert holder.poll() is None, "it was cut, and did not end by itself"
        finally:
            holder.kill()


def test_an_unknown_recording_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nix"])
    assert "there is no recording nix; there are quick-start" in capsys.readouterr().err
