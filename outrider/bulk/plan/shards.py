"""Plans which slices of which files make each shard of the output. Pure.

The plan depends only on the files and settings, so the output is the same whoever does the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Final

from outrider.bounds import PositiveInt, check_bounds
from outrider.errors import ConfigError, InvalidRequestError

FORMATS: Final = ("parquet", "arrow")
COMPRESSIONS: Final = ("none", "lz4", "zstd")
DEFAULT_SHARD_BYTES: Final = 16 << 20
SMALL_JOB_SHARDS: Final = 16
"""Fewest shards of a job that is too small for this many of the default size."""


@dataclass(frozen=True, slots=True)
class BulkSettings:
    """Raises ConfigError at construction."""

    format: str = "parquet"
    """One of FORMATS; arrow is the Arrow IPC file format."""
    compression: str = "none"
    """One of COMPRESSIONS."""
    field: str = "text"
    """Field of JSON objects, or column of Parquet files, that has the text."""
    shard_bytes: PositiveInt = DEFAULT_SHARD_BYTES
    """Bytes of text that a shard is made of, about; a longer text file is cut."""
    min_shards: PositiveInt = 1
    """Smaller jobs get smaller shards, until they have this many, so that all workers have some and
    end at about the same time. Text files are still only cut above `shard_bytes`."""
    token_offsets: bool = False
    """Whether the output has each token's first byte."""
    texts_are_lines: bool = False
    """Whether each line of a text file is a document."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("format", self.format, FORMATS),
            ("compression", self.compression, COMPRESSIONS),
        ):
            if value not in known:
                raise ConfigError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        check_bounds(self)
        if not self.field:
            raise ConfigError("the field that holds the text has no name")

    @property
    def suffix(self) -> str:
        """Suffix of the shards' names."""
        return f".{self.format}"


class FileKind(StrEnum):
    """Kind of a file's contents."""

    TEXT = "text"
    """One document."""
    TEXTS = "texts"
    """A document per line."""
    LINES = "lines"
    """A JSON object per line."""
    PARQUET = "parquet"
    """A column of texts."""


_KINDS = {".txt": FileKind.TEXT, ".jsonl": FileKind.LINES, ".parquet": FileKind.PARQUET}


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of a Parquet file."""

    num_rows: int
    num_bytes: int
    """Bytes of the text column, uncompressed."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file as it was found."""

    path: str
    """The path as given; also the source column of the shards."""
    kind: FileKind
    is_gzip: bool
    num_bytes: int
    modified_ns: int
    row_groups: tuple[RowGroup, ...] = ()
    """Row groups of a Parquet file."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of one source that goes into one shard."""

    source: SourceFile
    begin: int
    """First byte, or row group. A worker moves it on to the next safe place of a text, or to the
    next line."""
    end: int
    part: int = 0
    """Index of the slice in a text, from 0."""
    first_record: int = 0
    """Number of the first record, counted from 0."""


def kind_of(path: str, *, texts_are_lines: bool = False) -> tuple[FileKind, bool]:
    """Kind of a file by its name, and whether it is compressed by gzip. Raises
    InvalidRequestError."""
    suffixes = PurePath(path.lower()).suffixes
    is_gzip = bool(suffixes) and suffixes[-1] == ".gz"
    suffix = (suffixes[:-1] if is_gzip else suffixes)[-1:]
    kind = _KINDS.get("".join(suffix))
    if kind is None or (is_gzip and kind is FileKind.PARQUET):
        raise InvalidRequestError(
            f"{path}: its name must show what it holds and end with .txt, .jsonl, .parquet, "
            ".txt.gz or .jsonl.gz"
        )
    if texts_are_lines and kind is FileKind.TEXT:
        kind = FileKind.TEXTS
    return kind, is_gzip


FILE_BYTES: Final = 1024
"""Cost of opening a file, in bytes of text, so that a shard does not get too many small files."""
GZIP_RATIO: Final = 4
"""Estimated bytes of text per byte of gzip."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of the output, made by one worker."""

    number: int
    slices: tuple[Slice, ...]
    num_bytes: int
    """Estimated bytes of text in it."""

    def name(self, suffix: str) -> str:
        """File name; names sort in the order of the shards."""
        return f"shard-{self.number:06}{suffix}"


def make_shards(
    sources: Sequence[SourceFile], settings: BulkSettings, *, cuts_texts: bool
) -> list[Shard]:
    """Slices in the order of the sources, as many in a shard as its bytes of text allow.

    A source above that is cut into slices of about equal size: lines and Parquet files always,
    texts if `cuts_texts`, gzip never.
    """
    shards: list[Shard] = []
    taken: list[Slice] = []
    weight = 0
    shard_bytes = _shard_bytes(sources, settings)
    for one, num_bytes in _slices(sources, settings.shard_bytes, shard_bytes, cuts_texts):
        if taken and weight + num_bytes > shard_bytes:
            shards.append(Shard(len(shards), tuple(taken), weight))
            taken, weight = [], 0
        taken.append(one)
        weight += num_bytes
    if taken:
        shards.append(Shard(len(shards), tuple(taken), weight))
    return shards


def _shard_bytes(sources: Sequence[SourceFile], settings: BulkSettings) -> int:
    if settings.min_shards == 1:
        return settings.shard_bytes
    total = sum(num_bytes for _, num_bytes in _slices(sources, 1 << 62, 1 << 62, cuts_texts=False))
    return min(settings.shard_bytes, max(1, -(-total // settings.min_shards)))


def _slices(
    sources: Iterable[SourceFile], text_bytes: int, shard_bytes: int, cuts_texts: bool
) -> Iterator[tuple[Slice, int]]:
    """And the bytes of text in each; texts are cut above `text_bytes`, what else can be above
    `shard_bytes`."""
    for source in sources:
        if source.is_gzip:
            yield Slice(source, 0, source.num_bytes), source.num_bytes * GZIP_RATIO + FILE_BYTES
        elif source.kind is FileKind.PARQUET:
            yield from _of_row_groups(source, shard_bytes)
        elif source.kind in (FileKind.TEXTS, FileKind.LINES):
            yield from _of_bytes(source, shard_bytes)
        else:
            yield from _of_bytes(source, text_bytes if cuts_texts else source.num_bytes)


def _of_bytes(source: SourceFile, slice_bytes: int) -> Iterator[tuple[Slice, int]]:
    """In slices of equal size, so that no short last slice leaves a worker idle."""
    size = source.num_bytes
    count = max(1, -(-size // max(1, slice_bytes)))
    for part in range(count):
        begin, end = size * part // count, size * (part + 1) // count
        yield Slice(source, begin, end, part), end - begin + FILE_BYTES * (count == 1)


def _of_row_groups(source: SourceFile, shard_bytes: int) -> Iterator[tuple[Slice, int]]:
    begin = first_record = weight = num_rows = 0
    for number, group in enumerate(source.row_groups):
        if weight and weight + group.num_bytes > shard_bytes:
            yield Slice(source, begin, number, first_record=first_record), weight
            begin, first_record, weight = number, num_rows, 0
        weight += group.num_bytes
        num_rows += group.num_rows
    yield Slice(source, begin, len(source.row_groups), first_record=first_record), weight
