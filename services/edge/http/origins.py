"""Web pages that may use an edge (pure).

A browser lets a page read an answer of another origin, or send a request with a key to it, only if
that origin agrees: cross-origin resource sharing, of the Fetch standard (https://fetch.spec.whatwg.org).
This is no access control. It protects users from pages that they happen to visit; whoever is no
browser sends what it likes, and needs a key either way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from outrider.errors import ConfigError

Fields: TypeAlias = list[tuple[bytes, bytes]]

_ANY: Final = "*"
_ORIGIN: Final = re.compile(
    r"[a-z][a-z0-9+.-]*://[a-z0-9._~-]+(:\d{1,5})?|[a-z]+://\[[0-9a-f:]+\](:\d{1,5})?"
)
"""As browsers send it: lower case, names in their ASCII form, nothing behind the port. Besides
https and http there are schemes of extensions and of desktop applications."""
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_TOKENS: Final = re.compile(
    r"[!#$%&'*+.^_`|~0-9A-Za-z-]+([ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*"
)
_REQUEST_METHOD: Final = "access-control-request-method"
_REQUEST_HEADERS: Final = "access-control-request-headers"
_MAX_AGE_S: Final = b"7200"
"""How long a browser may remember the answer to a preflight; more has no effect in Chromium."""
_ALWAYS_READABLE: Final = frozenset(
    name.encode()
    for name in (
        *("cache-control", "content-language", "content-length", "content-type"),
        *("expires", "last-modified", "pragma"),
    )
)
"""Headers that pages may read of any answer."""


class AllowedOrigins:
    """The origins of pages that may use an edge."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        """`origins`: as browsers send them, `https://chat.example` or `app://obsidian.md`; or `*`
        alone, for all. Raises ConfigError for other texts."""
        self._origins = frozenset(origins)
        self._is_any = _ANY in self._origins
        if self._is_any and len(self._origins) > 1:
            raise ConfigError("http.allowed_origins: '*' is for all origins; leave the others out")
        for origin in self._origins - {_ANY}:
            _check(origin)

    def allow(self, origin: str) -> bool:
        """Whether pages of this origin may use the edge; "" is no origin."""
        return bool(origin) and (self._is_any or origin in self._origins)

    def is_preflight(self, method: str, headers: Mapping[str, str]) -> bool:
        """Whether this is a browser's question for an allowed page: may it send such a request? It
        comes without credentials."""
        return (
            method == "OPTIONS"
            and _REQUEST_METHOD in headers
            and self.allow(headers.get("origin", ""))
        )

    def preflight_answer(self, headers: Mapping[str, str], methods: Iterable[str]) -> Fields:
        """Headers of the answer to a preflight: the page may send any of `methods`, and the headers
        that it asked for. `shared` has the rest."""
        fields = [
            (b"access-control-allow-methods", ", ".join(sorted(methods)).encode()),
            (b"access-control-max-age", _MAX_AGE_S),
        ]
        # One by one: browsers take * neither for Authorization nor for requests with cookies.
        wanted = headers.get(_REQUEST_HEADERS, "").strip()
        if _TOKENS.fullmatch(wanted):
            fields.append((b"access-control-allow-headers", wanted.encode()))
        return fields

    def shared(self, origin: str, fields: Fields) -> Fields:
        """Headers that show an answer to pages of this origin, with all of its own headers
        (`fields`). Pages of origins that are named may send cookies too, which only a proxy in
        front of the edge reads; the standard forbids that for `*`."""
        if self._is_any:
            made: Fields = [(b"access-control-allow-origin", b"*")]
        elif not self._origins:
            return []
        else:
            made = [(b"vary", b"origin")]  # caches must not give one origin another's answer
            if self.allow(origin):
                made.append((b"access-control-allow-origin", origin.encode()))
                made.append((b"access-control-allow-credentials", b"true"))
        if self.allow(origin):
            names = dict.fromkeys(name for name, _ in fields if name not in _ALWAYS_READABLE)
            made.append((b"access-control-expose-headers", b", ".join(names)))
        return made


def _check(origin: str) -> None:
    port = _DEFAULT_PORTS.get(origin.partition(":")[0], "")
    if not _ORIGIN.fullmatch(origin) or (port and origin.endswith(port)):
        raise ConfigError(
            f"http.allowed_origins: {origin!r} is no origin as browsers send it; write scheme, "
            "host and a port that is not the scheme's own, in lower case and without a path: "
            "'https://chat.example', 'http://localhost:3000', or '*' for all"
        )
