"""The file form of an NgramPrior: what a model often says, whatever it is asked.

A prior is bound to a vocabulary digest. `tools/make_draft_prior.py` makes it from the model's own
replies; `data/README.md` says from which. A wrong prior costs speed and nothing else.
"""

from __future__ import annotations

import struct
import zlib
from functools import cache
from importlib import resources
from typing import Final

import numpy as np

from outrider.errors import ArtifactCorruptError
from outrider.speculation.ngrams import NgramPrior, Table

_MAGIC: Final = b"ORNP"
_VERSION: Final = 1
NUM_ORDERS: Final = 3
_HEADER: Final = struct.Struct(f"<4sH32s{NUM_ORDERS}II")
"""Magic, version, vocabulary digest, entries per order, CRC-32 of what follows."""


def to_bytes(vocabulary_digest: bytes, tables: list[Table]) -> bytes:
    """The file form: a header, then deflated all keys (u64) and all values (u32), sorted by key
    within each of the NUM_ORDERS tables."""
    items = [item for table in tables for item in sorted(table.items())]
    keys = np.array([key for key, _ in items], "<u8").tobytes()
    values = np.array([value for _, value in items], "<u4").tobytes()
    body = zlib.compress(keys + values, 9)
    counts = (len(table) for table in tables)
    head = _HEADER.pack(_MAGIC, _VERSION, vocabulary_digest, *counts, zlib.crc32(body))
    return head + body


def from_bytes(data: bytes) -> tuple[bytes, NgramPrior]:
    """Vocabulary digest and prior. Raises ArtifactCorruptError."""
    try:
        magic, version, digest, *counts, crc = _HEADER.unpack_from(data)
        body = data[_HEADER.size :]
        if magic != _MAGIC or version != _VERSION or crc != zlib.crc32(body):
            raise ValueError("header or checksum")
        raw, total = zlib.decompress(body), sum(counts)
        keys = np.frombuffer(raw, "<u8", total).tolist()
        values = np.frombuffer(raw, "<u4", total, offset=8 * total).tolist()
    except (ValueError, struct.error, zlib.error) as error:
        raise ArtifactCorruptError(
            f"a draft prior is damaged ({error}); install the package again"
        ) from error
    tables, begin = [], 0
    for count in counts:
        end = begin + count
        tables.append(dict(zip(keys[begin:end], values[begin:end], strict=True)))
        begin = end
    return digest, NgramPrior(tables)


@cache
def shipped_prior(vocabulary_digest: bytes) -> NgramPrior | None:
    """The prior in this package for a vocabulary, if there is one."""
    for entry in resources.files("outrider.speculation").joinpath("data").iterdir():
        if entry.name.endswith(".bin"):
            digest, prior = from_bytes(entry.read_bytes())
            if digest == vocabulary_digest:
                return prior
    return None
