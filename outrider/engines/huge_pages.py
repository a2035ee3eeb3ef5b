"""Large pages for the memory of weights, requested before a process starts (pure; decision 0004).

A call reads all weights once. With pages of 4 KiB some processes are up to a third slower than
others throughout their life, depending on where their pages lie; with pages of 2 MiB all are as
fast as the fastest. An environment variable makes glibc request them, and Linux grants them if
transparent_hugepage is `madvise`, as on most distributions, or `always`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "GLIBC_TUNABLES"
ASKED_FOR: Final = "glibc.malloc.hugetlb=1"


def with_huge_pages(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that holds weights. Variables already set win: an empty
    GLIBC_TUNABLES leaves pages as they are."""
    return {VARIABLE: ASKED_FOR, **environ}
