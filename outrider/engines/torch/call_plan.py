"""Which rows a call computes, and which keys each of them sees (pure).

Rows of all slices stand behind one another, filled up to whole tiles. Attention goes by tiles of
the rows of one slice, and over their keys by the blocks of the KV pool, in order: the arithmetic of
a row is the same in every call, however its tokens were cut into slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.engines.base import SequenceSlice

BLOCK_TOKENS: Final = 32
"""Tokens of a KV block."""
QUERY_ROWS: Final = 8
"""Rows of one sequence that attend together."""

Numbers: TypeAlias = npt.NDArray[np.int64]


class SpareBlocks(NamedTuple):
    """Two blocks of the pool that no sequence has."""

    zero: int
    """Always zero: read behind a sequence's blocks."""
    waste: int
    """Written by rows that are filling."""


class CallSize(NamedTuple):
    """The shape of a plan."""

    num_rows: int
    num_tiles: int
    num_blocks: int
    """Blocks of the longest table."""
    num_logits: int


@dataclass(frozen=True, slots=True)
class CallPlan:
    """The rows of one call, n of them; the last ones may be filling."""

    tokens: Numbers
    """[n] ids; filled up with 0."""
    positions: Numbers
    """[n] places in their sequences; filled up with 0."""
    write_blocks: Numbers
    """[n] the block that takes each row's keys and values."""
    write_slots: Numbers
    """[n] their places in these blocks."""
    query_rows: Numbers
    """[t, QUERY_ROWS] the rows of each tile of attention, those with the most blocks first; n where
    a tile has fewer rows."""
    query_positions: Numbers
    """[t, QUERY_ROWS] their places in their sequences; -1 where a tile has fewer rows."""
    num_blocks: Numbers
    """[t] blocks up to the one in which the tile's last row stands; 0 for tiles that are filling.
    """
    tables: Numbers
    """[t, b] these blocks in order, b a multiple of what was asked; behind them a block that is
    always zero."""
    logits_rows: Numbers
    """[r] rows whose logits are asked for, slice by slice, filled up with 0 to whole tiles."""
    num_logits: int
    """How many of them are asked for."""


@dataclass(frozen=True, slots=True)
class _Tile:
    first_row: int
    num_rows: int
    past: int
    """Position of the first row."""
    blocks: Numbers

    @property
    def num_blocks(self) -> int:
        return (self.past + self.num_rows - 1) // BLOCK_TOKENS + 1


def size_of(slices: Sequence[SequenceSlice], *, tile_rows: int, span_blocks: int) -> CallSize:
    """The smallest shape of a plan of these slices."""
    ends = [part.past + len(part.tokens) for part in slices]
    return CallSize(
        num_rows=_rounded(sum(len(part.tokens) for part in slices), tile_rows),
        num_tiles=sum(-(-len(part.tokens) // QUERY_ROWS) for part in slices),
        num_blocks=_rounded(-(-max(ends) // BLOCK_TOKENS), span_blocks),
        num_logits=_rounded(sum(part.num_rows for part in slices), tile_rows),
    )


def plan_call(slices: Sequence[SequenceSlice], spare: SpareBlocks, size: CallSize) -> CallPlan:
    """The plan of a call of at least one slice, which `base.check_slices` has passed, filled up to
    `size`, which is `size_of` them or larger."""
    tokens = np.concatenate([part.tokens for part in slices]).astype(np.int64)
    positions = np.concatenate([part.past + np.arange(len(part.tokens)) for part in slices])
    blocks = np.concatenate([_blocks_of(part) for part in slices])
    num_rows = size.num_rows
    tiles: list[_Tile] = []
    wanted, first_row = [], 0
    for part in slices:
        tiles += _tiles(part, first_row)
        first_row += len(part.tokens)
        wanted.append(np.arange(first_row - part.num_rows, first_row))
    tiles.sort(key=lambda tile: -tile.num_blocks)
    rows = np.full((size.num_tiles, QUERY_ROWS), num_rows, np.int64)
    places = np.full((size.num_tiles, QUERY_ROWS), -1, np.int64)
    tables = np.full((size.num_tiles, size.num_blocks), spare.zero, np.int64)
    for index, tile in enumerate(tiles):
        rows[index, : tile.num_rows] = tile.first_row + np.arange(tile.num_rows)
        places[index, : tile.num_rows] = tile.past + np.arange(tile.num_rows)
        tables[index, : tile.num_blocks] = tile.blocks[: tile.num_blocks]
    logits_rows = np.concatenate(wanted)
    return CallPlan(
        tokens=_filled(tokens, num_rows, 0),
        positions=_filled(positions, num_rows, 0),
        write_blocks=_filled(blocks, num_rows, spare.waste),
        write_slots=_filled(positions % BLOCK_TOKENS, num_rows, 0),
        query_rows=rows,
        query_positions=places,
        num_blocks=_filled(np.array([it.num_blocks for it in tiles]), size.num_tiles, 0),
        tables=tables,
        logits_rows=_filled(logits_rows, size.num_logits, 0),
        num_logits=len(logits_rows),
    )


def _tiles(part: SequenceSlice, first_row: int) -> list[_Tile]:
    count, blocks = len(part.tokens), part.blocks.astype(np.int64)
    return [
        _Tile(first_row + begin, min(QUERY_ROWS, count - begin), part.past + begin, blocks)
        for begin in range(0, count, QUERY_ROWS)
    ]


def _blocks_of(part: SequenceSlice) -> Numbers:
    """[n] the block of each of the slice's tokens."""
    positions = part.past + np.arange(len(part.tokens))
    return part.blocks.astype(np.int64)[positions // BLOCK_TOKENS]


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step


def _filled(numbers: Numbers, length: int, value: int) -> Numbers:
    whole = np.full(length, value, np.int64)
    whole[: len(numbers)] = numbers
    return whole
