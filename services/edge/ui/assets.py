"""The files of the web pages, read once: their bytes, types and digests.

A page's other files lie under a folder that is named by the digest of all of them, so browsers may
keep them for good: another release has another folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import PurePosixPath
from typing import Final

_FOLDER: Final = "static"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOLDER_PLACE: Final = b"{{static}}"
"""In a page: stands for the folder of the other files, relative to the page's address."""
_KEY_PLACE: Final = b"{{key}}"
"""In a page: stands for whether this edge needs a key of everybody, `needed` or `optional`."""
_DIGEST_CHARS: Final = 16


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    body: bytes
    content_type: str
    etag: str
    """Strong entity tag, with its quotes (RFC 9110, section 8.8.3)."""


@dataclass(frozen=True, slots=True)
class Assets:
    """All files of the pages."""

    digest: str
    """Names the folder of the files that are no pages."""
    files: dict[str, Asset]
    """By name."""

    def page(self, name: str, folder: str, *, needs_key: bool) -> Asset:
        """A page whose other files are in `folder`, relative to its own address."""
        body = self.files[name].body.replace(_FOLDER_PLACE, folder.encode())
        body = body.replace(_KEY_PLACE, b"needed" if needs_key else b"optional")
        return Asset(body, _TYPES[".html"], _etag(body))


@cache
def assets() -> Assets:
    """The files that this release of Outrider has."""
    folder = resources.files("services.edge.ui") / _FOLDER
    bodies = {
        it.name: it.read_bytes()
        for it in sorted(folder.iterdir(), key=lambda it: it.name)
        if PurePosixPath(it.name).suffix in _TYPES
    }
    whole = sha256()
    for name, body in bodies.items():
        whole.update(b"%b\0%d\0%b" % (name.encode(), len(body), body))
    files = {
        name: Asset(body, _TYPES[PurePosixPath(name).suffix], _etag(body))
        for name, body in bodies.items()
    }
    return Assets(whole.hexdigest()[:_DIGEST_CHARS], files)


def _etag(body: bytes) -> str:
    return f'"{sha256(body).hexdigest()[:_DIGEST_CHARS]}"'
