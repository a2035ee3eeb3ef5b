"""Memory that this process can still allocate, within the machine and its cgroups.

Limits are those of the process's own cgroup and of every group above it. Page cache that the kernel
can drop at once counts as free (cgroup's inactive file pages; MemAvailable, proc(5)).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError

_NO_LIMIT = 1 << 60
"""cgroup v1 has no word for "no limit", only numbers that no machine has."""


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes, and what sets them."""

    num_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class _Files:
    """Files of one version of the memory controller (kernel documentation, admin-guide/cgroup-v2
    and cgroup-v1/memory)."""

    name: str
    folder: str
    limit: str
    usage: str
    droppable: str


_V1 = _Files(
    "cgroup v1",
    "memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
)
_V2 = _Files("cgroup v2", "", "memory.max", "memory.current", "inactive_file")


def free_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> FreeMemory:
    """The least of all that bounds this process. Raises ConfigError where nothing can be read."""
    free = known_free_memory(proc, cgroups)
    if free is None:
        raise ConfigError("free memory cannot be measured here; set kv_bytes")
    return free


def known_free_memory(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> FreeMemory | None:
    """The same; None where nothing can be read."""
    bounds = [_of_machine(proc / "meminfo")]
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            files = _V1 if controllers else _V2
            bounds += _of_groups(cgroups / files.folder, path, files)
    known = [bound for bound in bounds if bound is not None]
    return min(known, key=lambda bound: bound.num_bytes, default=None)


def _of_machine(meminfo: Path) -> FreeMemory | None:
    for line in _text(meminfo).splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return FreeMemory(int(value.split()[0]) * 1024, "the machine's available memory")
    return None


def _of_groups(root: Path, path: str, files: _Files) -> list[FreeMemory]:
    """In a container the path may be the host's, and only the root be there."""
    folder = root / path.strip("/")
    groups = [group for group in (folder, *folder.parents) if group.is_relative_to(root)]
    bounds = [_of_group(group, files) for group in groups]
    return [bound for bound in bounds if bound is not None]


def _of_group(group: Path, files: _Files) -> FreeMemory | None:
    limit, usage = _text(group / files.limit).strip(), _text(group / files.usage).strip()
    if not limit.isdecimal() or not usage.isdecimal() or int(limit) >= _NO_LIMIT:
        return None
    droppable = 0
    for line in _text(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == files.droppable:
            droppable = int(value)
    free = int(limit) - int(usage) + droppable
    return FreeMemory(max(0, free), f"the {files.name} limit")


def _text(path: Path) -> str:
    """Text of a file; "" without it, since not every kernel has every controller."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
