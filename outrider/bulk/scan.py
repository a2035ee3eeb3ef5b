"""From names to sources and shards: what has to be looked up before anything is planned."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from outrider.bulk.plan.results import TextProblem
from outrider.bulk.plan.shards import (
    BulkSettings,
    FileKind,
    RowGroup,
    Shard,
    Slice,
    SourceFile,
    kind_of,
    make_shards,
)
from outrider.bulk.reading import count_lines
from outrider.errors import InvalidRequestError


def expand(patterns: Iterable[str]) -> list[str]:
    """The files of names and patterns (`*`, `?`, `[]`, and `**` for folders within folders),
    without duplicates; those of a pattern by name. Raises InvalidRequestError for a pattern without
    files."""
    found: dict[str, None] = {}
    for pattern in patterns:
        paths = [pattern] if Path(pattern).exists() else _matching(pattern)
        if not paths:
            raise InvalidRequestError(f"there is no file {pattern}")
        found |= dict.fromkeys(paths)
    return list(found)


def _matching(pattern: str) -> list[str]:
    return sorted(path for path in glob.iglob(pattern, recursive=True) if Path(path).is_file())


def find(
    paths: Iterable[str], settings: BulkSettings
) -> tuple[list[SourceFile], list[TextProblem]]:
    """The sources, and the paths that cannot be read. Raises InvalidRequestError for a name that
    does not show the file's kind."""
    sources, problems = [], []
    for path in paths:
        if (shown := _shown(path)) != path:
            why = "its name is no UTF-8, and rows have to name it: rename the file"
            problems.append(TextProblem(shown, why))
            continue
        kind, is_gzip = kind_of(path, texts_are_lines=settings.texts_are_lines)
        try:
            stat = Path(path).stat()
            groups = _row_groups(path, settings.field) if kind is FileKind.PARQUET else ()
        except (OSError, pa.ArrowException, InvalidRequestError) as error:
            problems.append(TextProblem(path, f"cannot be read: {error}"))
            continue
        sources.append(SourceFile(path, kind, is_gzip, stat.st_size, stat.st_mtime_ns, groups))
    return sources, problems


def _shown(path: str) -> str:
    """A path as it is printed and stored: bytes that are not UTF-8 are escaped as hexadecimal."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return os.fsencode(path).decode("utf-8", "backslashreplace")
    return path


def plan(sources: Sequence[SourceFile], settings: BulkSettings, *, cuts_texts: bool) -> list[Shard]:
    """The shards; each slice has the number of its first record. Raises OSError."""
    shards = make_shards(sources, settings, cuts_texts=cuts_texts)
    numbered = _numbered([one for shard in shards for one in shard.slices])
    return [replace(shard, slices=tuple(next(numbered) for _ in shard.slices)) for shard in shards]


def _numbered(slices: Sequence[Slice]) -> Iterator[Slice]:
    for source, group in groupby(slices, key=lambda one: one.source):
        of_source = list(group)
        if source.kind in (FileKind.TEXTS, FileKind.LINES) and len(of_source) > 1:
            counts = count_lines(source.path, [one.begin for one in of_source])
            yield from map(_with_first, of_source, counts)
        else:
            yield from of_source


def _with_first(one: Slice, first_record: int) -> Slice:
    return replace(one, first_record=first_record)


def _row_groups(path: str, field: str) -> tuple[RowGroup, ...]:
    with pq.ParquetFile(path) as file:
        metadata = file.metadata
        names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        if field not in names:
            raise InvalidRequestError(f"it has no column {field!r}, only {', '.join(names)}")
        at = names.index(field)
        groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
        return tuple(
            RowGroup(group.num_rows, group.column(at).total_uncompressed_size) for group in groups
        )
