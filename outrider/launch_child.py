"""Settles how a child runs, and becomes its command; outrider/children.py starts it.

`python -I -S launch_child.py SIGNAL PARENT CORES COMMAND...`: the kernel sends SIGNAL (0: none)
when the process PARENT ends; the command runs on CORES, as in `0,2` (empty: those of the parent).
The process stays the same, and the command gets the environment as it came.
"""

from __future__ import annotations

import os
import signal
import sys
from ctypes import CDLL

_PR_SET_PDEATHSIG = 1


def main() -> None:
    number, parent, cores = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    # The interpreter ignores these, and a command would inherit that.
    for each in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(each, signal.SIG_DFL)
    if number:
        _end_with(parent, number)
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    # Not os.environ: the interpreter may have added a locale of its own (PEP 538).
    with open("/proc/self/environ", "rb") as file:
        given = file.read().split(b"\0")
    environ = dict(variable.split(b"=", 1) for variable in given if b"=" in variable)
    try:
        os.execvpe(sys.argv[4], sys.argv[4:], environ)  # noqa: S606 - none is wanted
    except OSError as error:
        sys.stderr.write(f"{sys.argv[4]} cannot be run: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)


def _end_with(parent: int, number: int) -> None:
    """Ask the kernel for this signal when the parent ends (prctl(2)), and send it if it has."""
    if number != signal.SIGKILL:
        # Shells let what they start in the background ignore SIGINT, and its children inherit that.
        signal.signal(number, signal.SIG_DFL)
    CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os.kill(os.getpid(), number)


if __name__ == "__main__":
    main()
