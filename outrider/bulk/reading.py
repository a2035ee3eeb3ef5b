"""Reads the texts of a shard's slices: `.txt` (one document, long ones in parts, or one document a
line), `.jsonl` and `.parquet` (one document a record), `.txt.gz` and `.jsonl.gz`."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from outrider.bulk.plan.boundaries import slice_boundary
from outrider.bulk.plan.results import TextProblem
from outrider.bulk.plan.shards import BulkSettings, FileKind, Slice
from outrider.errors import InvalidRequestError, OutriderError
from outrider.tokenization.cuts import CutRule, Cutter

MAX_LINE_BYTES: Final = 1 << 28
_SKIP_BYTES: Final = 1 << 20
_ROWS: Final = 1024
"""Rows of a Parquet file that are read at once."""
_PIECE_BYTES: Final = 1 << 20
TEXT_BYTES: Final = 1 << 16
"""Approximate bytes of a long text that are encoded at once. As one string, a single symbol would
make it take four bytes a character, while most of its pieces are ASCII."""
_MAX_PART_RATIO: Final = 16
"""A part may get this many times longer than asked for where no place is safe to cut."""


@dataclass(frozen=True, slots=True)
class Document:
    """One row of the output before it is encoded: a text, or a part of a long one."""

    source: str
    record: int
    texts: tuple[str, ...]
    """The text in one piece, or in several, cut where their ids joined are the whole's."""
    num_bytes: int
    """Length of the text in UTF-8."""
    part: int = 0
    is_last: bool = True
    """Whether the document ends with it."""
    byte_offset: int = 0
    """Offset of the text's first byte in the document."""

    @property
    def text(self) -> str:
        """In one piece."""
        return "".join(self.texts)

    @property
    def num_chars(self) -> int:
        """Characters of the text."""
        return sum(map(len, self.texts))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How texts are read."""

    settings: BulkSettings
    rule: CutRule | None
    """Rule by which texts may be cut; None: they are not cut."""


ReadResult: TypeAlias = Document | TextProblem
Reader: TypeAlias = Callable[[Slice, ReadOptions], Iterator[ReadResult]]


def read_lines(one: Slice, options: ReadOptions) -> Iterator[ReadResult]:
    """The documents of the lines that begin within the slice; blank lines are numbered and skipped.
    Raises OSError, InvalidRequestError."""
    with Path(one.source.path).open("rb") as file:
        if one.begin:
            file.seek(one.begin - 1)
            while (skipped := file.readline(_SKIP_BYTES)) and not skipped.endswith(b"\n"):
                pass
        yield from _objects(file, one, options, left_bytes=one.end - file.tell())


def read_gzip_lines(one: Slice, options: ReadOptions) -> Iterator[ReadResult]:
    """All lines. Raises OSError, EOFError, zlib.error, InvalidRequestError."""
    with gzip.open(one.source.path, "rb") as file:
        yield from _objects(file, one, options, left_bytes=None)


def count_lines(path: str, positions: list[int]) -> list[int]:
    """How many lines begin before each of `positions`, bytes in rising order. Raises OSError."""
    counts: list[int] = []
    at = 0
    newlines = 0
    with Path(path).open("rb") as file:
        for position in positions:
            # A line that begins before a position has its newline before the byte ahead of it.
            while at < position - 1 and (data := file.read(min(1 << 20, position - 1 - at))):
                newlines += data.count(b"\n")
                at += len(data)
            counts.append(newlines + 1 if position else 0)
    return counts


def _objects(
    file: IO[bytes] | gzip.GzipFile, one: Slice, options: ReadOptions, left_bytes: int | None
) -> Iterator[ReadResult]:
    path = one.source.path
    number = one.first_record
    while left_bytes is None or left_bytes > 0:
        line = file.readline(MAX_LINE_BYTES)
        if not line:
            return
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            raise InvalidRequestError(
                f"record {number} has more than {MAX_LINE_BYTES} bytes; the file is read no further"
            )
        if left_bytes is not None:
            left_bytes -= len(line)
        if not line.isspace():
            if one.source.kind is FileKind.TEXTS:
                yield _plain(line, path, number)
            else:
                yield _parsed(line, path, number, options.settings.field)
        number += 1


def _parsed(line: bytes, path: str, number: int, field: str) -> ReadResult:
    try:
        value = json.loads(line)
        return _document(value[field], path, number)
    except (ValueError, RecursionError) as error:
        return TextProblem(path, f"is no JSON: {error}", number)
    except (KeyError, TypeError, IndexError):
        return TextProblem(path, f"has no field {field!r}", number)
    except OutriderError as error:
        return TextProblem(path, error.message, number)


def _plain(line: bytes, path: str, number: int) -> ReadResult:
    text = line.rstrip(b"\r\n")
    try:
        return Document(path, number, (text.decode(),), len(text))
    except UnicodeDecodeError as error:
        return TextProblem(path, f"is no UTF-8 ({error.reason})", number)


def _document(text: Any, path: str, number: int) -> Document:
    """Raises InvalidRequestError."""
    if not isinstance(text, str):
        raise InvalidRequestError(f"has no text there, but {type(text).__name__}")
    try:
        num_bytes = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        message = f"has a lone surrogate at character {error.start}: it is no Unicode"
        raise InvalidRequestError(message) from error
    return Document(path, number, (text,), num_bytes)


def read_parquet(one: Slice, options: ReadOptions) -> Iterator[ReadResult]:
    """The rows of the slice's row groups. Raises OSError, pa.ArrowException."""
    field = options.settings.field
    number = one.first_record
    groups = list(range(one.begin, one.end))
    with pq.ParquetFile(one.source.path) as file:
        for batch in file.iter_batches(_ROWS, row_groups=groups, columns=[field]):
            column: pa.Array = batch.column(0)
            for text in column.to_pylist():
                try:
                    yield _document(text, one.source.path, number)
                except OutriderError as error:
                    yield TextProblem(one.source.path, error.message, number)
                number += 1


def read_text(one: Slice, options: ReadOptions) -> Iterator[ReadResult]:
    """The document, or the slice's part of it. Raises OSError, UnicodeDecodeError,
    FrameTooLargeError."""
    with open(
        one.source.path, "rb", buffering=0
    ) as file:  # read in one go: a buffer would be a copy more
        begin, end = _bounds(one, options, file)
        size = one.source.num_bytes
        if begin == end and one.part:
            return
        file.seek(begin)
        data = _read_all(file, end - begin)
        if len(data) != end - begin:
            raise OSError("it became shorter while it was read")
        yield Document(
            source=one.source.path,
            record=one.first_record,
            texts=_texts(data, options.rule),
            num_bytes=len(data),
            part=one.part,
            is_last=end == size,
            byte_offset=begin,
        )


def _read_all(file: io.FileIO, num_bytes: int) -> bytes:
    """Read `num_bytes`, or up to the end of the file: Linux returns at most 2 GiB per call
    (read(2))."""
    data = file.read(num_bytes)
    if len(data) == num_bytes:
        return data
    parts = [data]
    left_bytes = num_bytes - len(data)
    while left_bytes and (data := file.read(left_bytes)):
        parts.append(data)
        left_bytes -= len(data)
    return b"".join(parts)


def _texts(data: bytes, rule: CutRule | None) -> tuple[str, ...]:
    """Raises UnicodeDecodeError."""
    if rule is None or len(data) <= TEXT_BYTES:
        return (data.decode(),)
    cutter = Cutter(rule, target_chars=TEXT_BYTES // 2, max_chars=len(data) + 1)
    decoder = codecs.getincrementaldecoder("utf-8")()
    texts: list[str] = []
    with memoryview(data) as view:
        for begin in range(0, len(view), TEXT_BYTES):
            end = begin + TEXT_BYTES
            texts += cutter.feed(decoder.decode(view[begin:end], final=end >= len(view)))
    return (*texts, *cutter.finish())


def _bounds(one: Slice, options: ReadOptions, file: io.FileIO) -> tuple[int, int]:
    size = one.source.num_bytes
    if options.rule is None or (one.begin, one.end) == (0, size):
        return one.begin, one.end

    def read(begin: int, end: int) -> bytes:
        file.seek(begin)
        return file.read(end - begin)

    return slice_boundary(options.rule, read, size, one.begin), slice_boundary(
        options.rule, read, size, one.end
    )


def read_gzip_text(one: Slice, options: ReadOptions) -> Iterator[ReadResult]:
    """The document, cut as it comes out of its compression. Raises OSError, EOFError, zlib.error,
    UnicodeDecodeError, FrameTooLargeError."""
    parts = _parts(one.source.path, options)
    offset = number = 0
    held = next(parts)
    for following in parts:
        num_bytes = len(held.encode())
        yield Document(one.source.path, 0, (held,), num_bytes, number, False, offset)
        offset += num_bytes
        number += 1
        held = following
    yield Document(one.source.path, 0, (held,), len(held.encode()), number, True, offset)


def _parts(path: str, options: ReadOptions) -> Iterator[str]:
    """At least one."""
    target_chars = options.settings.shard_bytes
    # Without a rule nothing is ever cut, however long.
    max_chars = _MAX_PART_RATIO * target_chars if options.rule else 1 << 62
    cutter = Cutter(options.rule, target_chars=target_chars, max_chars=max_chars)
    decoder = codecs.getincrementaldecoder("utf-8")()
    with gzip.open(path, "rb") as file:
        while data := file.read(_PIECE_BYTES):
            yield from cutter.feed(decoder.decode(data))
    decoder.decode(b"", final=True)
    yield from cutter.finish()


_READERS: Final[dict[tuple[FileKind, bool], Reader]] = {
    (FileKind.TEXT, False): read_text,
    (FileKind.TEXT, True): read_gzip_text,
    (FileKind.TEXTS, False): read_lines,
    (FileKind.TEXTS, True): read_gzip_lines,
    (FileKind.LINES, False): read_lines,
    (FileKind.LINES, True): read_gzip_lines,
    (FileKind.PARQUET, False): read_parquet,
}
_UNREADABLE: Final = (OSError, EOFError, zlib.error, pa.ArrowException, OutriderError)


def read(one: Slice, options: ReadOptions) -> Iterator[ReadResult]:
    """The slice's documents; an error that ends the reading becomes a problem of the file, and so
    does a change of the file since its slices were planned."""
    source = one.source
    reader = _READERS[source.kind, source.is_gzip]
    try:
        yield from reader(one, options)
        now = os.stat(source.path)
        if (now.st_size, now.st_mtime_ns) != (source.num_bytes, source.modified_ns):
            raise OSError("it was changed during the run, so documents may be missing")
    except UnicodeDecodeError as error:
        yield TextProblem(one.source.path, f"is no UTF-8 ({error.reason})")
    except _UNREADABLE as error:
        message = error.message if isinstance(error, OutriderError) else str(error)
        yield TextProblem(one.source.path, f"cannot be read: {message or type(error).__name__}")
