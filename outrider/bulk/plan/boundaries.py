"""Finds where the slices of a long text begin; each worker computes this by itself. Pure.

A slice's nominal end is a byte; its real end is the first safe place at or behind it, which depends
only on the text around it. So workers agree without communication.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from outrider.errors import FrameTooLargeError
from outrider.tokenization.cuts import CutRule

MAX_SEARCH_BYTES: Final = 16 << 20
_FIRST_WINDOW_BYTES: Final = 1 << 16
_MAX_CHAR_BYTES: Final = 4
_NO_CHAR: Final = "surrogateescape"
"""Keeps bytes that are not UTF-8; decoding the slice refuses them later."""

Read = Callable[[int, int], bytes]
"""The bytes of a file from one place up to another."""


def slice_boundary(rule: CutRule, read: Read, size: int, position: int) -> int:
    """The byte of the first safe place at or behind `position`; `size` (bytes) if none follows.

    Raises FrameTooLargeError if neither a safe place nor the end is within MAX_SEARCH_BYTES.
    """
    if not 0 < position < size:
        return min(max(position, 0), size)
    begin = max(0, position - _MAX_CHAR_BYTES * (rule.max_atom_chars + 1))
    window_bytes = _FIRST_WINDOW_BYTES
    while True:
        end = min(size, position + window_bytes)
        data = read(begin, end)
        found = _first_cut(rule, data, position - begin, is_end=end == size)
        if found is not None or end == size:
            return size if found is None else begin + found
        if window_bytes >= MAX_SEARCH_BYTES:
            raise FrameTooLargeError(
                f"{window_bytes} bytes behind byte {position} hold no place where the text may be "
                "cut; give shards more bytes than the text has"
            )
        window_bytes *= 4


def _first_cut(rule: CutRule, data: bytes, start: int, *, is_end: bool) -> int | None:
    """`start` and the answer are bytes of `data`, which more text follows unless `is_end`."""
    if not is_end:
        data = _without_last_char(data)
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    before = data[:start].decode("utf-8", _NO_CHAR)
    text = before + data[start:].decode("utf-8", _NO_CHAR)
    cut = rule.first_cut(text, len(before))
    return None if cut is None else len(text[:cut].encode("utf-8", _NO_CHAR))


def _without_last_char(data: bytes) -> bytes:
    """`data` without a character of several bytes at its end, which may be incomplete."""
    end = len(data)
    while end and data[end - 1] & 0xC0 == 0x80:
        end -= 1
    return data[: end - 1] if end and data[end - 1] >= 0xC0 else data[:end]
