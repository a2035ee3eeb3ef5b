"""Ends processes when the one that started them is gone, however it went.

`python -I -S guard.py PID...`: once standard input ends, the processes get SIGKILL. vLLM's process
that computes does not notice that its parent was killed, and keeps the GPU's memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection
from contextlib import suppress


class Guard:
    """Watches over processes for as long as this one lives."""

    def __init__(self, pids: Collection[int]) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if not pids:
            return
        command = [sys.executable, "-I", "-S", __file__, *map(str, pids)]
        # A session of its own: what ends this process may be sent to the whole group.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def close(self) -> None:
        """End the processes that still run; blocks for a moment."""
        if self._process is not None:
            self._process.communicate()  # closes its input


def main() -> None:
    """See the module's docstring."""
    # By descriptors, as a number may be another process's by then.
    watched = []
    for argument in sys.argv[1:]:
        with suppress(ProcessLookupError):
            watched.append(os.pidfd_open(int(argument)))
    while sys.stdin.buffer.read(1):
        pass
    for descriptor in watched:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)


if __name__ == "__main__":
    main()
