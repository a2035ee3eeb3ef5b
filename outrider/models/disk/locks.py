"""An advisory lock between processes and threads, on one file (flock(2))."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold the lock of `path`; yields whether somebody else held it first.

    The kernel drops the lock when its holder dies, so a killed process blocks nobody. Each
    acquisition opens the file anew: flock belongs to the open file, and so excludes threads of
    one process too. The file stays: unlinking it would let two holders lock two inodes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield _acquire(descriptor, on_wait)
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, on_wait: Callable[[], None] | None) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        if on_wait is not None:
            on_wait()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
