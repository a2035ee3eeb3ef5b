"""Tables of SentencePiece normalizers: those that lead outside themselves are refused, since the
library that looks texts up in them ends with a panic, not with an error."""

from __future__ import annotations

import base64
import random

import numpy as np
import pytest
from tokenizers import normalizers

from outrider.models.normalizer_table import check_table
from tests.models.test_unigram import precompiled

TABLE = base64.b64decode(precompiled()["precompiled_charsmap"])
NUM_TRIE_BYTES = int.from_bytes(TABLE[:4], "little")
TEXTS = ("\ufb01 \u2460 \uff21\u3000e\u0301", "".join(map(chr, range(1, 0x3400))))


def _with_unit(at: int, value: int) -> bytes:
    begin = 4 + 4 * at
    return TABLE[:begin] + value.to_bytes(4, "little") + TABLE[begin + 4 :]


def _first_value() -> int:
    """Which unit the value of a ligature or the like is."""
    units = np.frombuffer(TABLE, "<u4", NUM_TRIE_BYTES // 4, 4)
    return int(np.flatnonzero(units >> 31)[0])


def test_a_table_of_the_package_is_whole() -> None:
    check_table(TABLE)


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (b"", "bytes of trie"),
        (bytes(4), "bytes of trie"),
        (TABLE[: NUM_TRIE_BYTES // 2], "bytes of trie"),
        ((NUM_TRIE_BYTES + 2).to_bytes(4, "little") + TABLE[4:], "bytes of trie"),
        (_with_unit(0, 0x3FFFFF << 10), "outside its trie"),
        (_with_unit(0, 0xFFFFFFFF), "outside its trie"),
        (_with_unit(_first_value(), 0xFFFFFFFF), "a replacement outside"),
        (TABLE[:-1] + b"\xff", "utf-8"),
    ],
    ids=["empty", "no trie", "cut", "odd", "far", "root", "value", "text"],
)
def test_tables_that_lead_outside_are_refused(table: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check_table(table)


def test_a_replacement_begins_with_a_character() -> None:
    replacements = TABLE[4 + NUM_TRIE_BYTES :]
    inside = next(at for at, byte in enumerate(replacements) if byte & 0xC0 == 0x80)
    with pytest.raises(ValueError, match="inside a character"):
        check_table(_with_unit(_first_value(), 1 << 31 | inside))


def test_what_passes_never_breaks_off() -> None:
    rng = random.Random(1)
    num_passed = 0
    for _ in range(120):
        begin = rng.randrange(4, len(TABLE))
        table = TABLE[:begin] + rng.randbytes(1) + TABLE[begin + 1 :]
        try:
            check_table(table)
        except ValueError:
            continue
        num_passed += 1
        for text in TEXTS:
            normalizers.Precompiled(table).normalize_str(text)
    assert num_passed > 10
