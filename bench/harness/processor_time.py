"""Processor time of processes and threads, in nanoseconds (proc(5), proc_pid_schedstat)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def of_threads(pid: int) -> dict[int, int]:
    """Processor time of each thread of a process, in nanoseconds. Threads that have ended are
    missing."""
    used = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            used[int(task.name)] = int((task / "schedstat").read_text("ascii").split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return used


def between(before: Mapping[int, int], after: Mapping[int, int]) -> int:
    """Processor time of all threads together, between two readings."""
    return sum(used - before.get(thread, 0) for thread, used in after.items())
