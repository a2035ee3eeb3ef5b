"""Files that are replaced while a process runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

Stamp = tuple[tuple[int, int, int] | None, ...]


def stamp(paths: Sequence[Path]) -> Stamp:
    """What changes when one of the files does, links on the way to it included, as Kubernetes
    replaces the files of a secret: device-independent inode, length, time of the last write in ns;
    None for a file that is not there."""
    return tuple(_one(path) for path in paths)


def _one(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
