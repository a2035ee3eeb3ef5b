"""What a record was made from: the commit, and a digest of the sources its figures depend on.

The digest is of contents, not of commits: committing a record, or a page, makes no record stale,
and a record made from changes that were committed afterwards is fresh.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

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
