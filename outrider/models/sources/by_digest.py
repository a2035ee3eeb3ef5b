"""`sha256:DIGEST`: a model named by its digest, which only mirrors can provide."""

from __future__ import annotations

from pathlib import Path

from outrider.errors import SourceError
from outrider.models.disk.fetch import PartialFetch


class DigestSource:
    """An artifact without an origin of its own: mirrors are asked, or it is in the store."""

    def __init__(self, sha256: str) -> None:
        self.sha256 = sha256

    @property
    def text(self) -> str:
        """The canonical text."""
        return f"sha256:{self.sha256}"

    def fetch(self, partial: PartialFetch, scratch: Path) -> str | None:
        """Always raises SourceError: the source has no address to fetch from."""
        raise SourceError(
            f"{self.text} is only available from mirrors, and none is configured; name some: "
            "outrider models pull --from MIRROR, or mirrors.sources of a replica"
        )
