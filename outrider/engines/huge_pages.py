"""Large pages for the memory of weights, asked for before a process starts (pure; decision 0004).

A call reads all weights once. With pages of 4 KiB some processes run up to a third slower than
others for as long as they live, by where their pages happen to lie; with pages of 2 MiB all are as
fast as the fastest. glibc asks for them itself if it is told so in the environment, and Linux gives
them where transparent_hugepage is `madvise`, as it is on most distributions, or `always`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "GLIBC_TUNABLES"
ASKED_FOR: Final = "glibc.malloc.hugetlb=1"


def with_huge_pages(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that holds weights. What is set there already wins: an empty
    GLIBC_TUNABLES leaves pages as they are."""
    return {VARIABLE: ASKED_FOR, **environ}
