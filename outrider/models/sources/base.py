"""What every source of artifacts can do."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from outrider.errors import ConfigError
from outrider.models.disk.partial import Partial

COPY_BYTES = 1 << 20


class Source(Protocol):
    """One artifact's origin."""

    @property
    def text(self) -> str:
        """The canonical source text: the key of the store's index."""
        ...

    def fetch(self, partial: Partial, scratch: Path) -> str | None:
        """Write the artifact's bytes into `partial`; blocking.

        `scratch` is an empty directory on the store's disk, removed afterwards. Returns the
        sha256 the origin itself claims for the bytes, if it does. Raises SourceError if the
        origin cannot be read.
        """
        ...


def check_member(path: str, source: str) -> str:
    """A relative path inside a wheel or a repository. ConfigError if it could leave it."""
    parts = path.split("/")
    if not path or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ConfigError(
            f"source {source!r}: {path!r} is no plain relative path; "
            "write folder/file after the #, without '.', '..' or a leading slash"
        )
    return path
