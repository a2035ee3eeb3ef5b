"""Giving back the pages of a mapped file that will hardly be read again."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MAPS: Final = Path("/proc/self/maps")


def give_back_pages(path: Path) -> int:
    """Release the pages of a file that this process has mapped for reading; returns the number of
    bytes mapped. Later reads fetch them from the file again, so readers need not stop. Does nothing
    without Linux's list of mappings."""
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if advice is None:
        return 0
    # A private mapping that was never writable has no page that the file lacks.
    advise = ctypes.CDLL(None, use_errno=True).madvise
    given = 0
    for begin, length in _mappings(path.resolve()):
        if advise(ctypes.c_void_p(begin), ctypes.c_size_t(length), advice) == 0:
            given += length
    return given


def _mappings(path: Path) -> Iterator[tuple[int, int]]:
    """Address and length of each mapping of the file that cannot be written (proc(5))."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == str(path) and fields[1].startswith("r-"):
            begin, end = (int(part, 16) for part in fields[0].split("-"))
            yield begin, end - begin
