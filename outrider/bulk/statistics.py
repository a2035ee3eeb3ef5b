"""Lengths of all documents of a finished folder, read from its shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from outrider.bulk.plan.lengths import Part, document_lengths, percentiles

_COLUMNS = ["part", "num_tokens"]


def length_percentiles(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """Tokens per document: p50, p90, p99, max; empty without documents. Raises OSError."""
    return percentiles(document_lengths(_parts(folder, names)))


def _parts(folder: Path, names: Iterable[str]) -> Iterator[Part]:
    for name in names:
        part, tokens = (column.to_numpy() for column in _table(folder / name).columns)
        yield Part(part.astype(np.int64), tokens.astype(np.int64))


def _table(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path, columns=_COLUMNS)
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all().select(_COLUMNS)
