"""What a record was made from and where: commit, digest of the sources, machine and versions.

The digest is of contents, not of commits: committing a record, or a page, makes no record stale,
and a record made from changes that were committed afterwards is fresh.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median
from time import thread_time

_PACKAGES = (
    "outrider",
    "numpy",
    "grpcio",
    "protobuf",
    "tokenizers",
    "openvino",
    "openvino-genai",
    "aioquic",
)


@dataclass(frozen=True, slots=True)
class Facts:
    """Recorded beside every result."""

    cpu: str
    cores: int
    """Cores this process may use."""
    memory_gib: float
    system: str
    python: str
    versions: dict[str, str]
    date: str
    """UTC, ISO 8601."""
    loop_us: float
    """What 2,000 additions took Python: a shared machine is not as fast all the time."""


def machine_facts() -> Facts:
    """Facts of this machine, now."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Facts(
        cpu=_cpu_model(),
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


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


ROOT = Path(__file__).parents[2]

_MADE_BY_BENCHES = ("bench/results", "README.md", "docs/figures.md")


@dataclass(frozen=True, slots=True)
class Commit:
    """Where the code stood."""

    id: str
    """"" outside a repository."""
    dirty: bool
    """Whether tracked files differed from it, apart from records and the pages made of them."""

    def __str__(self) -> str:
        return f"{self.id[:8] or 'unknown'}{' with changes' if self.dirty else ''}"


def commit(root: Path = ROOT) -> Commit:
    """Of the working tree, now."""
    head = _git(root, "rev-parse", "HEAD").strip()
    others = [f":(exclude){path}" for path in _MADE_BY_BENCHES]
    changes = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *others)
    return Commit(head, bool(changes.strip()))


def digest(paths: Iterable[str], root: Path = ROOT) -> str:
    """Of the names and contents of all files at and under these paths, pages of text apart, which
    no figure depends on; what is not there counts as empty."""
    total = hashlib.sha256()
    for file in sorted({file for path in paths for file in _files(root / path)}):
        total.update(f"{file.relative_to(root)}\0".encode())
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:16]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for file in path.rglob("*") if path.is_dir() else ():
        if file.is_file() and file.suffix != ".md" and "__pycache__" not in file.parts:
            yield file


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout
