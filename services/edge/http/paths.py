"""Paths of requests as the table of routes has them (pure)."""

from __future__ import annotations

import re
from typing import Final

_ORIGIN: Final = re.compile("https?://[^/?#]*", re.IGNORECASE)
_SLASHES: Final = re.compile("//+")


def normal_path(path: str) -> str:
    """The decoded path of a request, without what clients put around it: the origin that the
    absolute form of a target begins with (RFC 9112, section 3.2.2), repeated slashes, which come of
    base URLs that end with one, and a slash at the end."""
    origin = _ORIGIN.match(path)
    bare = path[origin.end() :] if origin else path
    return _SLASHES.sub("/", bare).rstrip("/") or "/"
