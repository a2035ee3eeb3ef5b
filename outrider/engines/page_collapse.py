"""Puts memory that is already in use into large pages (madvise(2), MADV_COLLAPSE, Linux 6.1).

The setting of huge_pages.py reaches only what glibc allocates: weights that an engine repacks with
an allocator of its own stay in pages of 4 KiB. The kernel releases these one by one when the
process dies, before it closes its sockets, and until then no peer notices that a replica is gone.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outrider.engines.huge_pages import ASKED_FOR, VARIABLE

_MADV_HUGEPAGE: Final = 14
_MADV_COLLAPSE: Final = 25
_PAGE_BYTES: Final = 2 << 20
_MIN_BYTES: Final = 2 * _PAGE_BYTES
_MIN_RESIDENT: Final = 0.9
"""Share of a mapping that has to be in memory: the rest of its large pages will be, too."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A range of addresses, as `/proc/self/smaps` has it (proc(5))."""

    begin: int
    end: int
    is_private_memory: bool
    """Readable and writable, of no file."""
    resident_bytes: int
    huge_bytes: int
    """The part of these that is in large pages."""

    @property
    def is_worth_it(self) -> bool:
        """Whether it is large, in use, and in small pages."""
        size = self.end - self.begin
        return (
            self.is_private_memory
            and size >= _MIN_BYTES
            and self.resident_bytes >= _MIN_RESIDENT * size
            and self.resident_bytes - self.huge_bytes >= _PAGE_BYTES
        )


def mappings(lines: Iterable[str]) -> Iterator[Mapping]:
    """Mappings listed in the lines of a `smaps` file."""
    begin = end = resident = huge = 0
    is_private = False
    for line in lines:
        name, _, rest = line.partition(" ")
        if name == "Rss:":
            resident = int(rest.split()[0]) << 10
        elif name == "AnonHugePages:":
            huge = int(rest.split()[0]) << 10
        elif name == "VmFlags:":  # the last line of each
            yield Mapping(begin, end, is_private, resident, huge)
        elif not name.endswith(":"):
            first, _, last = name.partition("-")
            begin, end = int(first, 16), int(last, 16)
            flags, _, _, inode, *_ = rest.split()
            is_private = flags.startswith("rw") and flags.endswith("p") and inode == "0"


def collapse_pages() -> int:
    """Collapse this process's memory as far as the system lets it; bytes that were asked for.
    Blocks for about half a second a gigabyte. Does nothing where somebody decided against large
    pages (GLIBC_TUNABLES), and where the system has none."""
    if ASKED_FOR not in os.environ.get(VARIABLE, ASKED_FOR):
        return 0
    try:
        with Path("/proc/self/smaps").open(encoding="ascii", errors="replace") as smaps:
            found = [it for it in mappings(smaps) if it.is_worth_it]
    except OSError:
        return 0
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    asked_for = 0
    for it in found:
        begin = -(-it.begin // _PAGE_BYTES) * _PAGE_BYTES
        size = it.end // _PAGE_BYTES * _PAGE_BYTES - begin
        # Advice: what the kernel cannot or will not do stays as it is.
        advise(begin, size, _MADV_HUGEPAGE)
        advise(begin, size, _MADV_COLLAPSE)
        asked_for += size
    return asked_for
