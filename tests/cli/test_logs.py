"""`outrider logs`: order, names, what grows, what starts anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from outrider.cli.local.log_lines import readable
from outrider.cli.local.logs import LogFile
from outrider.cli.local.state import holding
from outrider.errors import InvalidRequestError, UnavailableError
from tests.cli.invoking import invoke


def _line(at: int, event: str) -> str:
    return json.dumps({"event": event, "timestamp": f"2026-01-01T00:00:{at:02}.000000Z"})


def _write(folder: Path, **services: list[str]) -> None:
    (folder / "logs").mkdir()
    for name, lines in services.items():
        (folder / "logs" / f"{name}.log").write_text("".join(f"{it}\n" for it in lines), "utf-8")


def _shown(folder: Path, *arguments: str) -> list[str]:
    command = ["logs", "--state-dir", str(folder), *arguments]
    return invoke(command, catch_exceptions=False).stdout.splitlines()


def test_a_record_is_a_line_for_people_and_its_traceback_more(tmp_path: Path) -> None:
    stamp = datetime(2026, 1, 1, 13, 4, 5, 678901).astimezone()
    record = {
        **{"event": "replica_lost", "level": "warning", "service": "router", "replica": "a-0"},
        **{"timestamp": stamp.isoformat(), "why": "it's \x1b[2J off", "tries": [1, 2]},
        "exception": "Traceback\n  \x9b1m line\nError",
    }
    _write(tmp_path, router=[json.dumps(record)])
    assert _shown(tmp_path) == [
        '13:04:05.678  warning   replica_lost  replica=a-0 why="it\'s \\u001b[2J off" tries=[1, 2]',
        "    Traceback",
        "      \\x9b1m line",
        "    Error",
    ]
    assert _shown(tmp_path, "--json") == [json.dumps(record)]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain \x1b[2J text", ["plain \\x1b[2J text"]),
        ("[1]", ["[1]"]),
        ('{"no": "event"}', ['{"no": "event"}']),
        ('{"event": "e", "timestamp": 5, "level": null}', ["None      e"]),
        ('{"event": "e", "timestamp": "not yet", "k": ""}', ['not yet            e  k=""']),
        ('{"event": 7, "k\\u001b": "\\u009b"}', ["          7  k\\x1b=\\x9b"]),
    ],
)
def test_what_is_no_record_is_shown_as_it_is_and_does_nothing(line: str, shown: list[str]) -> None:
    assert list(readable(line)) == shown


def test_lines_of_all_services_are_in_order_of_time(tmp_path: Path) -> None:
    edge, router = [_line(1, "a"), "Traceback", _line(4, "d")], [_line(2, "b"), _line(3, "c")]
    _write(tmp_path, edge=edge, router=router)
    assert _shown(tmp_path, "--json") == [
        f"edge   | {edge[0]}", "edge   | Traceback", f"router | {router[0]}",
        f"router | {router[1]}", f"edge   | {edge[2]}",
    ]  # fmt: skip
    assert _shown(tmp_path, "router", "--json") == router, "alone, as it is"
    assert _shown(tmp_path, "edge", "-n", "1", "--json") == edge[2:]
    assert _shown(tmp_path, "edge", "-n", "0") == []


def test_what_has_no_log_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="has no logs; start a mesh"):
        _shown(tmp_path)
    _write(tmp_path, edge=[], router=[])
    with pytest.raises(InvalidRequestError, match="'egde' has a log here: edge, router"):
        _shown(tmp_path, "egde")


def test_a_file_that_grows_and_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "edge.log"
    path.write_bytes(b"one\ntw")
    file = LogFile(path)
    assert file.read_lines(to_end=False) == ["one"], "half a line waits"
    with path.open("ab") as more:
        more.write(b"o\nthree")
    assert file.read_lines(to_end=False) == ["two"]
    assert file.read_lines(to_end=True) == ["three"]
    path.write_bytes(b"new\n")
    assert file.read_lines(to_end=False) == ["new"]
    with path.open("ab") as more:
        more.write(b"x" * 70_000)
    assert file.read_lines(to_end=False) == ["x" * 70_000], "a long line does not wait for its end"
    file.close()


def test_one_reads_as_many_last_lines_as_there_are(tmp_path: Path) -> None:
    path = tmp_path / "edge.log"
    path.write_bytes(b"1\n2\n3")
    for num_lines, shown in ((0, []), (1, ["3"]), (2, ["2", "3"]), (9, ["1", "2", "3"])):
        file = LogFile(path)
        file.skip_to_last(num_lines)
        assert file.read_lines(to_end=True) == shown
        file.close()


def test_following_ends_with_the_mesh_and_shows_its_last_lines(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "outrider.cli.main",
        "logs",
        "-f",
        "--state-dir",
        str(tmp_path),
    ]
    with holding(tmp_path):
        _write(tmp_path, edge=["first"])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as shown:
            assert shown.stdout is not None
            assert shown.stdout.readline() == "first\n"
            log = tmp_path / "logs" / "edge.log"
            with log.open("a") as more:
                more.write("second\n")
            assert shown.stdout.readline() == "second\n"
            with log.open("a") as more:
                more.write("last, without a newline")
            (tmp_path / "mesh.lock").unlink()  # nobody holds what is not there: the mesh is down
            assert shown.stdout.readline() == "last, without a newline\n"
            assert shown.wait(30) == 0
