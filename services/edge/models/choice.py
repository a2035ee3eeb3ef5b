"""Chooses the model of a request (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from outrider.access.api_keys import is_allowed
from outrider.errors import UnknownModelError

_NAMES_SHOWN: Final = 16


def usable(served: Iterable[str], allowed: tuple[str, ...]) -> list[str]:
    """The served models that a client may use, given its allowed names."""
    return [name for name in served if is_allowed(name, allowed)]


def choose(asked: str, served: Iterable[str], allowed: tuple[str, ...]) -> str:
    """The model for a request that asks for one of this name, or for "": the first that its client
    may use. Raises UnknownModelError, alike for a model that is not served and for one that its
    client may not use: it learns of no others than its own."""
    names = usable(served, allowed)
    name = asked or next(iter(names), "")
    if name in names:
        return name
    if not names:
        raise UnknownModelError(
            "this client may use none of the models here; ask the operator for one"
        )
    shown = ", ".join(names[:_NAMES_SHOWN])
    left_out = len(names) - _NAMES_SHOWN
    more = f" and {left_out} more" if left_out > 0 else ""
    raise UnknownModelError(f"there is no model {asked[:100]!r} here; there is {shown}{more}")
