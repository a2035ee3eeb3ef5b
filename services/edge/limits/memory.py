"""How much memory this process has, and may have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
"""proc(5): sizes in pages; the second is the resident size."""
_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Limit of a container, by cgroup v2 and v1."""


def resident_bytes() -> int:
    """Resident memory of this process; 0 if the system does not report it."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def limit_bytes() -> int:
    """Memory of the machine, or the limit of its container; 0 if the system reports neither."""
    try:
        limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        limit = 0
    for path in _LIMITS:
        try:
            limit = min(limit, int(path.read_text()))
        except (OSError, ValueError):
            continue  # no limit: no such file, or the word max
    return max(0, limit)
