"""From sources to shards: a function of the sources alone, whoever does the work. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from outrider.bulk.plan.sources import Kind, Slice, Source

FILE_BYTES: Final = 1024
"""What opening a file is worth, so that shards of many small files are small enough too."""
GZIP_RATIO: Final = 4
"""Text bytes in a byte of gzip, about."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of the output, made by one worker in one go."""

    number: int
    slices: tuple[Slice, ...]
    num_bytes: int
    """Text in it, about."""

    def name(self, suffix: str) -> str:
        """Its file's name; names sort as the shards do."""
        return f"shard-{self.number:06}{suffix}"


def make_shards(sources: Iterable[Source], shard_bytes: int, *, cuts_texts: bool) -> list[Shard]:
    """Slices in the order of the sources, as many in a shard as `shard_bytes` (text) allow.

    A source above that is cut into slices of about equal size: lines and Parquet files always,
    texts if `cuts_texts`, gzip never.
    """
    shards: list[Shard] = []
    taken: list[Slice] = []
    weight = 0
    for one, num_bytes in _slices(sources, shard_bytes, cuts_texts):
        if taken and weight + num_bytes > shard_bytes:
            shards.append(Shard(len(shards), tuple(taken), weight))
            taken, weight = [], 0
        taken.append(one)
        weight += num_bytes
    if taken:
        shards.append(Shard(len(shards), tuple(taken), weight))
    return shards


def _slices(
    sources: Iterable[Source], shard_bytes: int, cuts_texts: bool
) -> Iterator[tuple[Slice, int]]:
    for source in sources:
        if source.is_gzip:
            yield Slice(source, 0, source.num_bytes), source.num_bytes * GZIP_RATIO + FILE_BYTES
        elif source.kind is Kind.PARQUET:
            yield from _of_row_groups(source, shard_bytes)
        else:
            is_cut = cuts_texts or source.kind is Kind.LINES
            yield from _of_bytes(source, shard_bytes if is_cut else source.num_bytes)


def _of_bytes(source: Source, slice_bytes: int) -> Iterator[tuple[Slice, int]]:
    """Equal slices: the last worker would wait for nobody, and nobody for it."""
    size = source.num_bytes
    count = max(1, -(-size // max(1, slice_bytes)))
    for part in range(count):
        begin, end = size * part // count, size * (part + 1) // count
        yield Slice(source, begin, end, part), end - begin + FILE_BYTES * (count == 1)


def _of_row_groups(source: Source, shard_bytes: int) -> Iterator[tuple[Slice, int]]:
    begin = first_record = weight = num_rows = 0
    for number, group in enumerate(source.row_groups):
        if weight and weight + group.num_bytes > shard_bytes:
            yield Slice(source, begin, number, first_record=first_record), weight
            begin, first_record, weight = number, num_rows, 0
        weight += group.num_bytes
        num_rows += group.num_rows
    yield Slice(source, begin, len(source.row_groups), first_record=first_record), weight
