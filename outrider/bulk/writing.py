"""Writes one shard: complete under its name, or not at all."""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from outrider.bulk.plan.shards import BulkSettings

PARTIAL_SUFFIX: Final = ".part"
"""Suffix of an unfinished shard's name."""

WRITER: Final = f"pyarrow {pa.__version__}"
"""The library and version that determine the bytes of a shard, besides its rows."""


class ShardWriter:
    """Row groups into one file, which has its name when the block ends without an exception."""

    def __init__(self, path: Path, schema: pa.Schema, settings: BulkSettings) -> None:
        """Raises OSError."""
        self._path = path
        # A worker whose run was killed may still be at the same shard.
        self._partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{PARTIAL_SUFFIX}")
        compression = None if settings.compression == "none" else settings.compression
        self._writer: Any
        if settings.format == "parquet":
            # Ids do not repeat enough for a dictionary; file names repeat in every row.
            self._writer = pq.ParquetWriter(
                self._partial,
                schema,
                compression=compression or "none",
                use_dictionary=["source"],
                write_statistics=["record", "num_tokens"],
            )
        else:
            options = pa.ipc.IpcWriteOptions(compression=compression)
            self._writer = pa.ipc.new_file(str(self._partial), schema, options=options)

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """One row group, of all of them. Raises OSError."""
        table = pa.Table.from_batches(batches)
        if table.num_rows:
            self._writer.write_table(table, max(1, table.num_rows))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._writer.close()
            if kind is None:
                self._partial.replace(self._path)
        finally:
            if self._partial.exists():
                with contextlib.suppress(OSError):
                    self._partial.unlink()
