"""`outrider logs`: the log lines of the services of the mesh on this machine, by time, and as they
are written.

Every service has a file `logs/NAME.log` in the state folder, which stays when the service or the
mesh has ended. A restarted service appends to the same file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from outrider.cli.local.log_lines import readable, unchanged
from outrider.cli.local.state import StateDir, default_state_dir, supervisor_pid
from outrider.errors import InvalidRequestError, UnavailableError

_POLL_S: Final = 0.2
_READ_BYTES: Final = 1 << 20
"""Most bytes read of a file at once; the rest follows at the next look."""
_MAX_LINE_BYTES: Final = 1 << 16
"""A longer line is shown in pieces."""

_Services = Annotated[
    list[str] | None,
    typer.Argument(
        help="Names of services, as `outrider status` shows them; default: all.", show_default=False
    ),
]
_Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Keep showing new lines until the mesh ends.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print the lines as the services wrote them.")]
_Lines = Annotated[
    int,
    typer.Option(
        "--lines", "-n", min=0, max=100_000, help="Number of latest lines to show of each service."
    ),
]


def logs(
    services: _Services = None,
    follow: _Follow = False,
    lines: _Lines = 20,
    as_json: _Json = False,
    state_dir: StateDir = None,
) -> None:
    """Show the logs of the mesh on this machine, also after it has ended. Lines of several services
    are sorted by time and preceded by the service's name."""
    folder = (state_dir or default_state_dir()).resolve()
    shown = unchanged if as_json else readable
    files = [LogFile(path) for path in _paths(folder, services or [])]
    width = max(len(file.name) for file in files) if len(files) > 1 else 0
    try:
        for file in files:
            file.skip_to_last(lines)
        first = by_time([(file.name, file.read_lines(to_end=True)) for file in files])
        _print(first, width, shown)
        while follow:
            is_up = supervisor_pid(folder) is not None  # asked first: its last lines are shown
            new = by_time([(file.name, file.read_lines(to_end=not is_up)) for file in files])
            _print(new, width, shown)
            if not is_up:
                break
            if not new:
                time.sleep(_POLL_S)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        for file in files:
            file.close()


def _paths(folder: Path, names: Sequence[str]) -> list[Path]:
    """Raises UnavailableError where no mesh was, InvalidRequestError for a name it has not."""
    there = {path.stem: path for path in sorted((folder / "logs").glob("*.log"))}
    if not there:
        raise UnavailableError(f"{folder} has no logs; start a mesh there with `outrider up`")
    for name in names:
        if name not in there:
            raise InvalidRequestError(f"no service {name!r} has a log here: {', '.join(there)}")
    return [there[name] for name in dict.fromkeys(names or there)]


class LogFile:
    """A log read line by line, and further as it grows. Started anew, it is read from its start."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self._file = path.open("rb")
        self._rest = b""

    def close(self) -> None:
        """No more is read."""
        self._file.close()

    def skip_to_last(self, num_lines: int) -> None:
        """Move to the start of the last lines; bytes behind the last newline count as a line."""
        starts: deque[int] = deque([0], maxlen=num_lines + 1)
        while self._file.readline():
            starts.append(self._file.tell())
        self._file.seek(starts[0])

    def read_lines(self, *, to_end: bool) -> list[str]:
        """New whole lines, at most about 1 MiB of them; with `to_end` all lines, including a last
        one without newline."""
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
            self._rest = b""
        data = self._rest + self._file.read(-1 if to_end else _READ_BYTES)
        *whole, self._rest = data.split(b"\n")
        if self._rest and (to_end or len(self._rest) > _MAX_LINE_BYTES):
            whole.append(self._rest)
            self._rest = b""
        return [line.decode("utf-8", "replace") for line in whole]


def by_time(logs: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, str]]:
    """Lines of several services in order of their `timestamp`, each with its service's name; one
    without (of a traceback) stays behind the line before it."""
    timed = []
    for name, lines in logs:
        at = ""
        for line in lines:
            at = _timestamp(line) or at
            timed.append((at, name, line))
    return [(name, line) for _, name, line in sorted(timed, key=lambda each: each[0])]


def _timestamp(line: str) -> str:
    try:
        record = json.loads(line)
    except ValueError:
        return ""
    stamp = record.get("timestamp") if isinstance(record, dict) else None
    return stamp if isinstance(stamp, str) else ""


def _print(
    lines: Sequence[tuple[str, str]], width: int, shown: Callable[[str], Iterable[str]]
) -> None:
    for name, line in lines:
        for text in shown(line):
            print(f"{name:{width}} | {text}" if width else text)
    sys.stdout.flush()
