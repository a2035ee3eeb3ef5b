"""Files that are replaced whole: a file under its name is complete, whenever a process is killed, a
disk is full or the power fails."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: a rename survives power loss only after this."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make a file's bytes durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600, is_durable: bool = True) -> None:
    """Replace `path` by `data`; a crash at any moment leaves the old bytes or the new ones. Without
    `is_durable` that holds for crashes of processes alone, and no disk is waited for. Raises
    OSError, and leaves nothing behind then; what a killed process left, the next write takes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, new = _claim(path)
    try:
        os.ftruncate(descriptor, 0)
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fchmod(descriptor, mode)
        if is_durable:
            os.fsync(descriptor)
        new.replace(path)
    except BaseException as failure:
        new.unlink(missing_ok=True)
        if isinstance(failure, OSError) and failure.filename is None:
            failure.filename = str(path)  # whoever tells of it says which file failed
        raise
    finally:
        os.close(descriptor)
    if is_durable:
        sync_directory(path.parent)


def _claim(path: Path) -> tuple[int, Path]:
    """Open a file beside `path` that no other process writes, and lock it: the first one that a
    killed process left, or that is not there."""
    number = -1
    while True:
        number += 1
        name = path.with_name(f".new-{number}-{path.name}")
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if os.path.lexists(name):
                continue  # another user's
            error.filename = str(path)  # which is what the caller knows
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # It may have got its final name since it was opened.
            if os.path.samestat(os.fstat(descriptor), name.lstat()):
                return descriptor, name
        except (BlockingIOError, FileNotFoundError):
            pass  # another process writes it, or has just done so
        except BaseException:
            name.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        os.close(descriptor)
