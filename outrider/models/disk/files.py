"""Files of the model store: digests, locks, empty folders."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes, in hexadecimal; hashes without holding the GIL."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def empty_directory(path: Path) -> Path:
    """`path` as an empty directory; what a killed process left in it is removed."""
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(parents=True)
    return path


@contextmanager
def exclusive(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold the advisory lock of `path` (flock(2)), against processes and threads; yields whether
    another one held it first.

    The kernel drops the lock when its holder dies, so a killed process blocks nobody. Each
    acquisition opens the file anew: flock belongs to the open file, and so excludes threads of one
    process too. The file stays: unlinking it would let two holders lock two inodes.
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
