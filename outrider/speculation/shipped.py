"""Draft statistics that this package ships for a vocabulary, in `data/`, and their file forms.

- `*.bin`: an n-gram prior: sequences frequent in the model's replies to any prompt.
  `tools/make_draft_prior.py` makes it from the model's own replies; `data/README.md` lists which.
- `NAME.sources.json`: calibrations per draft source, kind of reply and range of positions.
  `python -m tools.train_draft calibrate-sources` fits them on recorded replies.

Each file names the digest of its vocabulary's tokens (`Vocabulary.tokens_digest`); chat template
and stop tokens make no difference. A wrong table costs speed and nothing else.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np

from outrider.errors import ArtifactCorruptError
from outrider.speculation.calibration import POSITION_BEGINS, Lines, Platt, SourceCalibrations
from outrider.speculation.ngrams import NgramPrior, Table

_MAGIC: Final = b"ORNP"
_VERSION: Final = 1
NUM_ORDERS: Final = 3
_HEADER: Final = struct.Struct(f"<4sH32s{NUM_ORDERS}II")
"""Magic, version, digest of the tokens, entries per order, CRC-32 of what follows."""


def prior_to_bytes(tokens_digest: bytes, tables: list[Table]) -> bytes:
    """The file form: a header, then deflated all keys (u64) and all values (u32), sorted by key
    within each of the NUM_ORDERS tables."""
    items = [item for table in tables for item in sorted(table.items())]
    keys = np.array([key for key, _ in items], "<u8").tobytes()
    values = np.array([value for _, value in items], "<u4").tobytes()
    body = zlib.compress(keys + values, 9)
    counts = (len(table) for table in tables)
    head = _HEADER.pack(_MAGIC, _VERSION, tokens_digest, *counts, zlib.crc32(body))
    return head + body


def prior_from_bytes(data: bytes) -> tuple[bytes, NgramPrior]:
    """Digest of the tokens and prior. Raises ArtifactCorruptError."""
    try:
        magic, version, digest, *counts, crc = _HEADER.unpack_from(data)
        body = data[_HEADER.size :]
        if magic != _MAGIC or version != _VERSION or crc != zlib.crc32(body):
            raise ValueError("header or checksum")
        raw = zlib.decompress(body)
        total = sum(counts)
        keys = np.frombuffer(raw, "<u8", total).tolist()
        values = np.frombuffer(raw, "<u4", total, offset=8 * total).tolist()
    except (ValueError, struct.error, zlib.error) as error:
        raise ArtifactCorruptError(
            f"a draft prior is damaged ({error}); install the package again"
        ) from error
    tables = []
    begin = 0
    for count in counts:
        end = begin + count
        tables.append(dict(zip(keys[begin:end], values[begin:end], strict=True)))
        begin = end
    return digest, NgramPrior(tables)


@cache
def shipped_prior(tokens_digest: bytes) -> NgramPrior | None:
    """The prior in this package for a vocabulary of these tokens; None without one."""
    for entry in resources.files("outrider.speculation").joinpath("data").iterdir():
        if entry.name.endswith(".bin"):
            digest, prior = prior_from_bytes(entry.read_bytes())
            if digest == tokens_digest:
                return prior
    return None


def calibrations_to_json(tokens_digest: bytes, calibrations: SourceCalibrations) -> str:
    """The file form: a line of text per source, [shift, slope] by bucket."""
    parts = [
        f' "tokens_digest": "{tokens_digest.hex()}"',
        f' "position_begins": {json.dumps(list(POSITION_BEGINS))}',
    ]
    for kind, by_source in (("greedy", calibrations.greedy), ("sampled", calibrations.sampled)):
        rows = [
            f"  {json.dumps(source)}: {json.dumps([[line.shift, line.slope] for line in lines])}"
            for source, lines in sorted(by_source.items())
        ]
        parts.append(f' "{kind}": {{\n' + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def calibrations_from_json(text: str) -> tuple[bytes, SourceCalibrations]:
    """Digest of the tokens and calibrations. Raises ArtifactCorruptError."""
    try:
        document = json.loads(text)
        if document["position_begins"] != list(POSITION_BEGINS):
            raise ValueError(f"positions {document['position_begins']}")
        kinds = [_by_source(document[kind]) for kind in ("greedy", "sampled")]
        return bytes.fromhex(document["tokens_digest"]), SourceCalibrations(*kinds)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactCorruptError(
            f"calibrations of sources are damaged ({error}); install the package again"
        ) from error


def _by_source(document: Mapping[str, list[list[float]]]) -> dict[str, Lines]:
    found = {
        source: tuple(Platt(float(shift), float(slope)) for shift, slope in rows)
        for source, rows in document.items()
    }
    if any(len(lines) != len(POSITION_BEGINS) for lines in found.values()):
        raise ValueError("a source has not one line per range of positions")
    return found


def sources_file(model: str) -> Path:
    """File of a model's calibrations in this package."""
    return Path(str(resources.files("outrider.speculation"))) / "data" / f"{model}.sources.json"


@cache
def shipped_calibrations(tokens_digest: bytes) -> SourceCalibrations:
    """The calibrations in this package for a vocabulary of these tokens; without any, the
    identity."""
    for entry in resources.files("outrider.speculation").joinpath("data").iterdir():
        if entry.name.endswith(".sources.json"):
            digest, calibrations = calibrations_from_json(entry.read_text(encoding="utf-8"))
            if digest == tokens_digest:
                return calibrations
    return SourceCalibrations()
