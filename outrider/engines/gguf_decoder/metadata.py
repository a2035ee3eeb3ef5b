"""Numbers in a GGUF file's metadata, which may hold anything under any name."""

from __future__ import annotations

import math
from typing import Final, NoReturn

from gguf import GGUFReader

from outrider.errors import UnsupportedModelError
from outrider.models.gguf_file import content_of

_MAX_COUNT: Final = 1 << 31


def count_of(reader: GGUFReader, name: str, default: int | None = None) -> int:
    """A field that counts something; `default` if it is missing. Raises UnsupportedModelError,
    naming the field, unless it is a positive whole number: some files have a list with one for each
    layer."""
    value = content_of(reader, name)
    value = default if value is None else value
    if type(value) is not int or not 0 < value < _MAX_COUNT:
        _refuse(name, "a positive whole number", value)
    return value


def number_of(reader: GGUFReader, name: str, default: float) -> float:
    """A field that measures something, as `count_of`: positive and finite."""
    value = content_of(reader, name)
    value = default if value is None else value
    if type(value) not in (int, float) or not 0 < value < math.inf:
        _refuse(name, "a positive number", value)
    return float(value)


def _refuse(name: str, wanted: str, value: object) -> NoReturn:
    if value is None:
        raise UnsupportedModelError(f"the model lacks {name}; use a complete GGUF file")
    raise UnsupportedModelError(
        f"{name} of the model is {value!r:.60} where {wanted} is needed; choose another file"
    )
