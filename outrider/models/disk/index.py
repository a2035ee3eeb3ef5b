"""Which source gave which bytes: one small JSON file per source, replaced atomically.

One file per source, not one for all: two processes that pull different models never write the
same file, so no read-modify-write can lose an entry.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from outrider.durable_files import write_atomic
from outrider.errors import ArtifactCorruptError

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The index's record of a source."""

    source: str
    """The canonical source text."""
    sha256: str
    """SHA-256 of the artifact's bytes, hexadecimal."""
    num_bytes: int
    """Size of the artifact in bytes."""
    revision: str = ""
    """The commit that it came from, of sources that may name another one later; "": it is not
    known."""


def source_key(source: str) -> str:
    """A file name for a source."""
    return hashlib.sha256(source.encode()).hexdigest()[:40]


class SourceIndex:
    """The entries of one store."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, source: str) -> IndexEntry | None:
        """The entry of a source; None without one. ArtifactCorruptError if it is damaged."""
        entry = _read(self._file(source))
        if entry is not None and entry.source != source:
            raise ArtifactCorruptError(
                f"index entry {self._file(source)} is for {entry.source!r}, not {source!r}; "
                "delete the file and pull again"
            )
        return entry

    def write(self, entry: IndexEntry) -> None:
        """Add or replace an entry."""
        text = json.dumps(asdict(entry), indent=1)
        # Other users of the machine may use the store, as far as they may read it.
        write_atomic(self._file(entry.source), text.encode(), mode=0o644)

    def delete(self, source: str) -> None:
        """Forget a source; forgetting an unknown one is no error."""
        self._file(source).unlink(missing_ok=True)

    def entries(self) -> Iterator[IndexEntry]:
        """Every entry, in the order of the file names. ArtifactCorruptError as in `read`."""
        for file in sorted(self._root.glob("*.json")):
            entry = _read(file)
            if entry is not None:
                yield entry

    def _file(self, source: str) -> Path:
        return self._root / f"{source_key(source)}.json"


def _read(file: Path) -> IndexEntry | None:
    try:
        data = json.loads(file.read_bytes())
        entry = IndexEntry(**data)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ArtifactCorruptError(
            f"index entry {file} is damaged ({error}); delete the file and pull again"
        ) from error
    if not _is_valid(entry):
        raise ArtifactCorruptError(
            f"index entry {file} holds impossible values; delete the file and pull again"
        )
    return entry


def _is_valid(entry: IndexEntry) -> bool:
    return (
        isinstance(entry.source, str)
        and isinstance(entry.sha256, str)
        and _SHA256.fullmatch(entry.sha256) is not None
        and type(entry.num_bytes) is int
        and entry.num_bytes >= 0
        and isinstance(entry.revision, str)
    )
