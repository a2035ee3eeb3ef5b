"""Ends processes when the one that started them is gone, however it went.

`python -I -S guard.py PID...`: once standard input ends, these processes and those that they had
started by the beginning get SIGTERM, and SIGKILL if they still run after a while. vLLM's processes
that compute do not notice that their parent was killed, and keep the GPU's memory.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress

_GRACE_S = 10.0


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
    watched = set()
    for pid in _family(set(map(int, sys.argv[1:]))):
        with suppress(ProcessLookupError):
            watched.add(os.pidfd_open(pid))
    while sys.stdin.buffer.read(1):
        pass
    _send(watched, signal.SIGTERM)
    _wait(watched)
    _send(watched, signal.SIGKILL)


def _family(pids: set[int]) -> set[int]:
    """These processes and all that descend from them."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found, added = set(pids), set(pids)
    while added:
        added = {pid for pid, parent in parents.items() if parent in added} - found
        found |= added
    return found


def _send(descriptors: set[int], number: signal.Signals) -> None:
    for descriptor in descriptors:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)


def _wait(descriptors: set[int]) -> None:
    """Until all have ended, but not long."""
    poll, left, end = select.poll(), set(descriptors), time.monotonic() + _GRACE_S
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    while left and (left_s := end - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left_s * 1e3):
            poll.unregister(descriptor)
            left.discard(descriptor)


if __name__ == "__main__":
    main()
