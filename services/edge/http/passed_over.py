"""What a request contains that cannot be served and changes nothing of what can: it is passed over,
and the client is told in a header of the answer (pure)."""

from __future__ import annotations

import re
from typing import Final

HEADER: Final = "x-outrider-passed-over"
UNLISTED: Final = "unlisted_fields"
"""Fields that are not named one by one."""
_MAX_NAMED: Final = 32
"""Names that are kept; a body has room for a hundred thousand."""
_MAX_NAME_CHARS: Final = 64
_UNPRINTABLE: Final = re.compile(r"[^!-+\--~]")
"""All but visible ASCII without the comma, which separates names."""


class PassedOver:
    """Places in one request, each with its type where it has one: `tools[1]:web_search`."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """By the name for the client: the name for the log."""

    def add(self, place: str, kind: str = "") -> None:
        """Note a part of the request. `kind`: the client's own word for it, which is not logged."""
        self._add(f"{place}:{kind}" if kind else place, place)

    def add_unlisted(self, name: str) -> None:
        """Note a field that no API has. Its name may say anything, so it is not logged."""
        self._add(name, UNLISTED)

    def _add(self, name: str, logged: str) -> None:
        if len(self._names) < _MAX_NAMED:
            self._names[_UNPRINTABLE.sub("_", name[:_MAX_NAME_CHARS])] = logged

    @property
    def names(self) -> tuple[str, ...]:
        """At most 32 names, of at most 64 visible ASCII characters."""
        return tuple(self._names)

    @property
    def logged(self) -> tuple[str, ...]:
        """The names without the client's own words, each once."""
        return tuple(dict.fromkeys(self._names.values()))

    @property
    def headers(self) -> dict[str, str]:
        """The header for the answer; none if nothing was passed over."""
        return {HEADER: ", ".join(self._names)} if self._names else {}
