"""How many cores this process may keep busy, within its affinity and its cgroups' quotas."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def usable_cores(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may compute on at once, at least 1: those of its CPU affinity, or
    fewer if its cgroup or one above it has a quota (kernel documentation: cgroup-v2, `cpu.max`;
    sched-bwc, `cpu.cfs_quota_us`). Of a quota the whole cores count."""
    cores = len(os.sched_getaffinity(0))
    return max(1, int(min([cores, *_quotas(proc, cgroups)])))


def _quotas(proc: Path, cgroups: Path) -> Iterator[float]:
    """Cores, of each group that has a quota."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # In a container the path may be the host's, and only the root be there.
        root = cgroups / "cpu" if controllers else cgroups
        folder = root / path.strip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(root):
                yield from _quota(group, is_v1=bool(controllers))


def _quota(group: Path, *, is_v1: bool) -> Iterator[float]:
    if is_v1:
        words = [_text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    else:
        words = _text(group / "cpu.max").split()
    if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
        yield int(words[0]) / int(words[1])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
