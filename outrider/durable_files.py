"""Files that are replaced whole: a file under its name is complete, whenever a process is killed, a
disk is full or the power fails."""

from __future__ import annotations

import os
import tempfile
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
    OSError, and leaves nothing behind then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if is_durable:
                os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if is_durable:
        sync_directory(path.parent)
