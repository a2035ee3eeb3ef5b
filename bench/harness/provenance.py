"""Origin of a record: commit, machine and versions."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Final

from outrider.engines.cpu_features import cpu_flags

TELLING_FLAGS: Final = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""Processor flags that decide how fast matrices are multiplied, and in which precision."""
_PACKAGES = (
    "outrider",
    "numpy",
    "grpcio",
    "protobuf",
    "tokenizers",
    "openvino",
    "openvino-genai",
    "torch",
    "aioquic",
)


@dataclass(frozen=True, slots=True)
class Facts:
    """Recorded beside every result."""

    cpu: str
    """Name that the processor reports; two generations may share one."""
    cpu_family: str
    cpu_model: str
    """Family and model number, which differ between generations; "" on systems without them."""
    cpu_flags: tuple[str, ...]
    """Those of `TELLING_FLAGS` that it has."""
    precision: str
    """Precision of our engine's default on this machine: bf16 or f32; "" without OpenVINO."""
    cores: int
    """Cores this process may use."""
    memory_gib: float
    system: str
    python: str
    versions: dict[str, str]
    date: str
    """UTC, ISO 8601."""
    loop_us: float
    """Microseconds that Python takes for 2,000 additions: the speed of a shared machine varies."""


def machine_facts() -> Facts:
    """Facts of this machine, now."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpu = _first_cpu(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace"))
    return Facts(
        cpu=cpu.get("model name") or platform.processor() or "unknown",
        cpu_family=cpu.get("cpu family", ""),
        cpu_model=cpu.get("model", ""),
        cpu_flags=tuple(name for name in TELLING_FLAGS if name in cpu_flags()),
        precision=_precision(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory_bytes / 2**30, 1),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        versions={name: version for name in _PACKAGES if (version := _version(name))},
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        loop_us=round(median(_loop_us() for _ in range(200)), 1),
    )


def _loop_us() -> float:
    begin, total = thread_time(), 0
    for number in range(2000):
        total += number
    return (thread_time() - begin) * 1e6


def _first_cpu(cpuinfo: str) -> dict[str, str]:
    """Linux's entries on the first processor, by name."""
    lines = (line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _precision() -> str:
    try:
        import openvino
    except ModuleNotFoundError:
        return ""
    from outrider.engines.openvino.compiling import precision_of

    return precision_of("auto", openvino.Core())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


ROOT = Path(__file__).parents[2]

_MADE_BY_BENCHES = ("bench/results", "README.md", "docs/figures.md", "docs/figures", "docs/charts")


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit of the working tree."""

    id: str
    """"" outside a repository."""
    dirty: bool
    """Whether tracked files differed from it, apart from records and the pages made of them."""

    def __str__(self) -> str:
        return f"{self.id[:8] or 'unknown'}{' with changes' if self.dirty else ''}"


def commit(root: Path = ROOT) -> Commit:
    """Commit of the working tree now."""
    head = _git(root, "rev-parse", "HEAD").strip()
    others = [f":(exclude){path}" for path in _MADE_BY_BENCHES]
    changes = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *others)
    return Commit(head, bool(changes.strip()))


@cache
def changed_paths(since: str, root: Path = ROOT) -> frozenset[str] | None:
    """Tracked files of the working tree that differ from commit `since`, renamed ones included;
    None without git or that commit."""
    try:
        done = subprocess.run(
            ["git", "-C", root, "diff", "--name-only", "--no-renames", "-z", since, "--"],
            capture_output=True,
            text=True,
        )
    except OSError:
        return None
    return None if done.returncode else frozenset(done.stdout.split("\0")) - {""}


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout
