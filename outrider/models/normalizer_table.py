"""Checks the precompiled table of a SentencePiece normalizer before the library looks texts up in
it: a table that leads outside itself would break the process off in the middle of a text. Pure.

Layout: u32 bytes of a trie, the trie (a double array of u32, as google/sentencepiece writes it),
then the replacements, one behind the other, each with a NUL behind it. A unit of the trie has its
label (bits 0 to 7, and 31 for a value), bit 8 for a value below it, and the distance to the units
below (bits 10 to 30, times 256 with bit 9). A value is the first byte of a replacement.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

_LENGTH_BYTES: Final = 4
_UNIT_BYTES: Final = 4
_IS_VALUE: Final = 1 << 31
_HAS_VALUE: Final = 1 << 8
_IS_FAR: Final = 1 << 9
_LABELS: Final = 0xFF
_CONTINUATION_MASK: Final = 0xC0
_CONTINUATION: Final = 0x80
"""First byte value that continues a UTF-8 character rather than beginning one."""


def check_tables(normalizer: Mapping[str, Any] | None) -> None:
    """Check all tables of a `tokenizer.json`'s normalizer. Raises ValueError as `check_table`."""
    if normalizer is None:
        return
    for step in normalizer.get("normalizers", ()):
        check_tables(step)
    if table := normalizer.get("precompiled_charsmap"):
        check_table(base64.b64decode(table, validate=True))


def check_table(data: bytes) -> None:
    """Raises ValueError if a step or a replacement lies outside the table."""
    num_bytes = int.from_bytes(data[:_LENGTH_BYTES], "little")
    replaced_at = _LENGTH_BYTES + num_bytes
    if num_bytes % _UNIT_BYTES or not _LABELS < num_bytes // _UNIT_BYTES or replaced_at > len(data):
        raise ValueError(f"the normalizer's table is to have {num_bytes} bytes of trie")
    replacements = data[replaced_at:]
    replacements.decode()
    units = np.frombuffer(data, "<u4", num_bytes // _UNIT_BYTES, _LENGTH_BYTES).astype(np.int64)
    below = np.arange(len(units)) ^ ((units >> 10) << np.where(units & _IS_FAR, 8, 0))
    # The first unit is a step whatever it says; of the others values are none.
    steps = (units & _IS_VALUE) == 0
    steps[0] = True
    below = np.where(steps, below, 0)
    # Every byte may come next, so all units that differ from the first below in it are looked at.
    if int((below | _LABELS).max()) >= len(units):
        raise ValueError("the normalizer's table leads outside its trie")
    values = units[below[steps & (units & _HAS_VALUE != 0)]] & (_IS_VALUE - 1)
    if len(values) and int(values.max()) > len(replacements):
        raise ValueError("the normalizer's table names a replacement outside it")
    begins = np.frombuffer(replacements + b"\0", np.uint8)[values]
    if np.any((begins & _CONTINUATION_MASK) == _CONTINUATION):
        raise ValueError("the normalizer's table names a replacement inside a character")
