"""A command under a terminal of its own, as a user has it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT_S = 60.0

# It leads a session of its own whose terminal is its input, as a login has it (setsid(1)), and
# hears Ctrl-C: tests that a shell runs in the background ignore it, and what they start would too.
_OWNING_IT = ("setsid", "--ctty", "env", "--default-signal=INT")


class Terminal:
    """What a command shows, and keys for it."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self._unread = ""
        self.shown = ""

    def type(self, keys: str) -> None:
        """Press keys; Ctrl-C is "\\x03"."""
        os.write(self._descriptor, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size (tty_ioctl(4), TIOCSWINSZ)."""
        termios.tcsetwinsize(self._descriptor, (rows, columns))

    def until(self, text: str) -> str:
        """Read until `text` is shown anew, in one line or wrapped, and return what was."""
        limit = time.monotonic() + LIMIT_S
        wrapped = re.compile("(?:\r\n)?".join(map(re.escape, text)))
        while (found := wrapped.search(self._unread)) is None:
            assert time.monotonic() < limit, f"no {text!r} after {self.shown!r}"
            assert self._read(), f"the command ended after {self.shown!r}"
        before, self._unread = self._unread[: found.start()], self._unread[found.end() :]
        return before + text

    def prompted(self) -> str:
        """Read until the command waits for a line, and return what was shown: from then on the
        terminal marks what is pasted (xterm's bracketed paste mode)."""
        return self.until("\x1b[?2004h")

    def ended(self) -> int:
        """Wait for the command's end and return its status."""
        while self._read():
            pass
        return self.process.wait(LIMIT_S)

    def _read(self) -> bool:
        """Take what is shown next; False once the command has let go of the terminal."""
        ready, _, _ = select.select([self._descriptor], [], [], LIMIT_S)
        assert ready, f"nothing happens after {self.shown!r}"
        try:
            data = os.read(self._descriptor, 65536).decode(errors="replace")
        except OSError:  # EIO: nobody has the other end open (Linux)
            return False
        self.shown += data
        self._unread += data
        return bool(data)


@contextmanager
def terminal(*arguments: str, output: int | None = None) -> Iterator[Terminal]:
    """Run one `outrider` command in a terminal of 80 columns and 24 rows; its standard output goes
    to the descriptor `output`, if there is one."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    process = subprocess.Popen(
        [*_OWNING_IT, sys.executable, "-m", "outrider.cli.main", *arguments],
        stdin=theirs,
        stdout=theirs if output is None else output,
        stderr=theirs,
        # Nobody answers here when the terminal is asked where its cursor stands.
        env={**os.environ, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"},
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
