"""Reads `.jsonl`, `.jsonl.gz` and `.parquet`: one document a record."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from outrider.bulk.plan.results import Problem
from outrider.bulk.plan.sources import Slice
from outrider.bulk.work.documents import Document, Found, Reading
from outrider.errors import InvalidRequestError, OutriderError

MAX_LINE_BYTES: Final = 1 << 28
_SKIP_BYTES: Final = 1 << 20
_ROWS: Final = 1024
"""Of a Parquet file that are read at once."""


def read_lines(one: Slice, reading: Reading) -> Iterator[Found]:
    """The lines that begin within the slice; blank ones count and give nothing. Raises OSError,
    InvalidRequestError."""
    with Path(one.source.path).open("rb") as file:
        if one.begin:
            file.seek(one.begin - 1)
            while (skipped := file.readline(_SKIP_BYTES)) and not skipped.endswith(b"\n"):
                pass
        yield from _objects(file, one, reading, left_bytes=one.end - file.tell())


def read_gzip_lines(one: Slice, reading: Reading) -> Iterator[Found]:
    """All lines. Raises OSError, EOFError, zlib.error, InvalidRequestError."""
    with gzip.open(one.source.path, "rb") as file:
        yield from _objects(file, one, reading, left_bytes=None)


def count_lines(path: str, places: list[int]) -> list[int]:
    """How many lines begin before each of `places`, which are bytes in rising order. Raises
    OSError."""
    counts, at, newlines = [], 0, 0
    with Path(path).open("rb") as file:
        for place in places:
            # A line that begins before a place has its newline before the byte ahead of it.
            while at < place - 1 and (data := file.read(min(1 << 20, place - 1 - at))):
                newlines += data.count(b"\n")
                at += len(data)
            counts.append(newlines + 1 if place else 0)
    return counts


def _objects(
    file: IO[bytes] | gzip.GzipFile, one: Slice, reading: Reading, left_bytes: int | None
) -> Iterator[Found]:
    path, number = one.source.path, one.first_record
    while left_bytes is None or left_bytes > 0:
        line = file.readline(MAX_LINE_BYTES)
        if not line:
            return
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            raise InvalidRequestError(
                f"record {number} has more than {MAX_LINE_BYTES} bytes: the file is read no further"
            )
        if left_bytes is not None:
            left_bytes -= len(line)
        if not line.isspace():
            yield _parsed(line, path, number, reading.settings.field)
        number += 1


def _parsed(line: bytes, path: str, number: int, field: str) -> Found:
    try:
        value = json.loads(line)
        return _document(value[field], path, number)
    except (ValueError, RecursionError) as error:
        return Problem(path, f"is no JSON: {error}", number)
    except (KeyError, TypeError, IndexError):
        return Problem(path, f"has no field {field!r}", number)
    except OutriderError as error:
        return Problem(path, error.message, number)


def _document(text: Any, path: str, number: int) -> Document:
    """Raises InvalidRequestError."""
    if not isinstance(text, str):
        raise InvalidRequestError(f"has no text there, but {type(text).__name__}")
    try:
        num_bytes = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        message = f"has a lone surrogate at character {error.start}: it is no Unicode"
        raise InvalidRequestError(message) from error
    return Document(path, number, text, num_bytes)


def read_parquet(one: Slice, reading: Reading) -> Iterator[Found]:
    """The rows of the slice's row groups. Raises OSError, pa.ArrowException."""
    field, number = reading.settings.field, one.first_record
    groups = list(range(one.begin, one.end))
    with pq.ParquetFile(one.source.path) as file:
        for batch in file.iter_batches(_ROWS, row_groups=groups, columns=[field]):
            column: pa.Array = batch.column(0)
            for text in column.to_pylist():
                try:
                    yield _document(text, one.source.path, number)
                except OutriderError as error:
                    yield Problem(one.source.path, error.message, number)
                number += 1
