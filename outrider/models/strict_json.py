"""JSON of unknown origin, refused if an object repeats a key: programs differ in which of the two
values they take. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def read_object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object in UTF-8. Raises ValueError with the reason, or RecursionError."""
    found = json.loads(text.decode(), object_pairs_hook=_once)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        known = set[str]()
        for name, _ in pairs:
            if name in known:
                raise ValueError(f"{name[:100]!r} occurs twice")
            known.add(name)
    return found
