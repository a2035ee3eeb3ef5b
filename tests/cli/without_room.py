"""Runs commands, each in a forked process, on a machine that lacks something:
`python -m tests.cli.without_room LACK`, with a JSON list of command lines on standard input; prints
a JSON list of what they ended with."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import traceback
from typing import Final, Literal

from outrider.cli.main import app_for, main

Lack = Literal["permission", "space", "files", "output", "nothing"]

_CAPABILITY_VERSION: Final = 0x20080522
_BYPASS_PERMISSIONS: Final = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
_PATIENCE_S: Final = 60
_SPARE_FILES: Final = 1
"""More would do for some commands; with none, Python cannot even read its own files."""
_DEFECT: Final = 70


def _become_plain() -> None:
    """Let the permissions of files hold for root, too."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    for number in range(2):  # effective and permitted, of the first 32 capabilities
        sets[number] &= ~_BYPASS_PERMISSIONS
    assert libc.capset(header, sets) == 0


def _lack(what: Lack) -> None:
    if what == "permission":
        _become_plain()
    elif what == "space":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    elif what == "files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (_SPARE_FILES + 3,) * 2)
    elif what == "output":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def _run(what: Lack, line: list[str]) -> tuple[int, str]:
    """The exit status of one command, and what it says on standard error."""
    reading, writing = os.pipe()  # no file: the size of files is limited
    child = os.fork()  # noqa: TID251  (one thread, which ends in os._exit)
    if not child:
        signal.alarm(_PATIENCE_S)
        os.close(reading)
        os.dup2(writing, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.closerange(3, 256)
        _lack(what)
        sys.argv = ["outrider", *line]
        os._exit(_status())
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said.decode()


def _status() -> int:
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
        return _DEFECT
    finally:
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    app_for([])  # all of its modules: what a command has to open should be its own
    lack: Lack = sys.argv[1]  # type: ignore[assignment]
    print(json.dumps([_run(lack, line) for line in json.load(sys.stdin)]))
