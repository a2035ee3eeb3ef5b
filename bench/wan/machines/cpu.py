"""Cores and CPU time of processes, from /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def split_cores() -> tuple[frozenset[int], frozenset[int]]:
    """The region's cores and the edge's: half of this process's each; one core is both's."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    return (frozenset(cores[:half]), frozenset(cores[half:])) if half else (frozenset(cores),) * 2


def tree(pid: int) -> Iterator[int]:
    """The process and its descendants."""
    yield pid
    for task in _tasks(pid):
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                yield from tree(int(child))


def cpu_s(pid: int) -> float:
    """CPU time of a process and its descendants so far (proc(5): utime and stime)."""
    return sum(own_cpu_s(process) for process in list(tree(pid)))


def own_cpu_s(pid: int) -> float:
    """The same without descendants; 0 if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _tasks(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
