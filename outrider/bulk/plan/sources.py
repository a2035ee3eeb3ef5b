"""Files to read, and slices of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from outrider.errors import InvalidRequestError


class Kind(StrEnum):
    """What a file holds."""

    TEXT = "text"
    """One document."""
    LINES = "lines"
    """A JSON object per line."""
    PARQUET = "parquet"
    """A column of texts."""


_KINDS = {".txt": Kind.TEXT, ".jsonl": Kind.LINES, ".parquet": Kind.PARQUET}


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of a Parquet file."""

    num_rows: int
    num_bytes: int
    """Of the text column, uncompressed."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file as it was found."""

    path: str
    """As it was given; what the shards say where a text comes from."""
    kind: Kind
    is_gzip: bool
    num_bytes: int
    modified_ns: int
    row_groups: tuple[RowGroup, ...] = ()
    """Of a Parquet file."""


@dataclass(frozen=True, slots=True)
class Slice:
    """What one shard takes of one source."""

    source: Source
    begin: int
    """Byte, or row group, at which it begins; a text's is moved to the next safe place, a line's
    to the next line."""
    end: int
    part: int = 0
    """Of a text: the how-many-th slice it is."""
    first_record: int = 0
    """Number of the first record, counted from 0."""


def kind_of(path: str) -> tuple[Kind, bool]:
    """What a file holds by its name, and whether it is compressed by gzip. Raises
    InvalidRequestError."""
    suffixes = PurePath(path.lower()).suffixes
    is_gzip = bool(suffixes) and suffixes[-1] == ".gz"
    suffix = (suffixes[:-1] if is_gzip else suffixes)[-1:]
    kind = _KINDS.get("".join(suffix))
    if kind is None or (is_gzip and kind is Kind.PARQUET):
        raise InvalidRequestError(
            f"{path}: what it holds is told by its name, which must end with .txt, .jsonl, "
            ".parquet, .txt.gz or .jsonl.gz"
        )
    return kind, is_gzip
