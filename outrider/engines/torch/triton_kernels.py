"""Kernels in Triton, for CUDA GPUs; Triton's interpreter runs them on a CPU, in tests.

Each program of a grid computes fixed tiles in a fixed order: no sum is split over programs by the
size of a call. So a row's bits do not depend on what else is in the call. Numbers that differ from
call to call are never specialised, which would compile a program of its own for some of them; and
products and sums are not fused (enable_fp_fusion), which each compilation would decide anew.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.engines.torch.call_plan import BLOCK_TOKENS, QUERY_ROWS
from outrider.engines.torch.kernels import AttentionTiles, ExpertTiles
from outrider.engines.torch.matrices import GROUP_VALUES, GroupedMatrix, Matrix

_TILE_ROWS: Final = 64
"""Rows of a product: the fewest of a warp group's matrix instructions. A step of fewer rows reads
the same weights, which is what its time goes into."""
_EXPERT_ROWS: Final = 16
"""Lines of an expert's tile: the fewest of a matrix instruction, as few rows share an expert."""
_TILE_COLUMNS: Final = 64
_TILE_DEPTH: Final = 64
_WIDE_BYTES: Final = 1024
"""Of one head of a token: 256 numbers of f32."""
_SPLIT_BLOCKS: Final = 32
"""Blocks of keys that one program goes through; those of longer contexts are joined in order."""


class TritonKernels:
    """Implements kernels.Kernels."""

    tile_rows = _TILE_ROWS
    expert_rows = _EXPERT_ROWS
    span_blocks = _SPLIT_BLOCKS

    def product(self, rows: Tensor, matrix: Matrix) -> Tensor:
        rows = rows.to(matrix.dtype).contiguous()
        product = _empty(len(rows), matrix, rows.device)
        numbers, scales, depth_step = _operands(matrix)
        num_columns, depth = numbers.shape
        grid = (len(rows) // _TILE_ROWS, triton.cdiv(num_columns, _TILE_COLUMNS))
        _product[grid](
            *(rows, numbers, scales, product, num_columns, depth),
            TILE_ROWS=_TILE_ROWS,
            TILE_COLUMNS=_TILE_COLUMNS,
            TILE_DEPTH=depth_step,
            IS_GROUPED=isinstance(matrix, GroupedMatrix),
            enable_fp_fusion=False,
        )
        return product

    def expert_products(self, rows: Tensor, matrix: Matrix, tiles: ExpertTiles) -> Tensor:
        rows = rows.to(matrix.dtype).contiguous()
        product = _empty(tiles.rows.numel(), matrix, rows.device)
        numbers, scales, depth_step = _operands(matrix)
        num_experts, num_columns, depth = numbers.shape
        grid = (len(tiles.experts), triton.cdiv(num_columns, _TILE_COLUMNS))
        _expert_product[grid](
            *(rows, numbers, scales, product, tiles.rows, tiles.experts),
            *(len(rows), num_experts, num_columns, depth),
            TILE_ROWS=self.expert_rows,
            TILE_COLUMNS=_TILE_COLUMNS,
            TILE_DEPTH=depth_step,
            IS_GROUPED=isinstance(matrix, GroupedMatrix),
            enable_fp_fusion=False,
        )
        return product

    def normed(self, rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
        size = rows.shape[-1]
        flat = rows.reshape(-1, size).contiguous()
        normed = torch.empty_like(flat)
        width = triton.next_power_of_2(size)
        _normed[(len(flat),)](
            flat, gain, normed, size, epsilon, WIDTH=width, enable_fp_fusion=False
        )
        return normed.reshape(rows.shape)

    def attended(
        self,
        queries: Tensor,
        pool: Tensor,
        tiles: AttentionTiles,
        window: int,
        sinks: Tensor | None = None,
    ) -> Tensor:
        queries = queries.contiguous()
        num_rows, num_heads, size = queries.shape
        num_tiles, kv_heads = len(tiles.rows), pool.shape[2]
        num_splits = tiles.tables.shape[1] // _SPLIT_BLOCKS
        lines = QUERY_ROWS * (num_heads // kv_heads)
        parts = queries.new_empty((num_tiles, kv_heads, num_splits, lines, size + 2))
        # The row behind the last one takes what tiles lack.
        answer = queries.new_zeros((num_rows + 1, num_heads, size))
        shape: dict[str, Any] = {
            "QUERY_ROWS": QUERY_ROWS,
            "SHARED": num_heads // kv_heads,
            "LINES": max(16, triton.next_power_of_2(lines)),
            "SIZE": size,
            "WIDTH": max(16, triton.next_power_of_2(size)),
            "enable_fp_fusion": False,
        }
        _attended[num_tiles, kv_heads, num_splits](
            *(queries, pool, tiles.rows, tiles.positions, tiles.num_blocks, tiles.tables, parts),
            *(num_rows, kv_heads, tiles.tables.shape[1], pool.stride(0), window),
            BLOCK_TOKENS=BLOCK_TOKENS,
            SPLIT_BLOCKS=_SPLIT_BLOCKS,
            # Blocks that are loaded ahead: of wide heads, fewer fit into the memory of a small GPU.
            num_stages=3 if size * pool.element_size() < _WIDE_BYTES else 1,
            **shape,
        )
        _joined[num_tiles, kv_heads](
            *(parts, tiles.rows, tiles.num_blocks, parts if sinks is None else sinks),
            *(answer, kv_heads, num_splits),
            SPLIT_BLOCKS=_SPLIT_BLOCKS,
            HAS_SINKS=sinks is not None,
            **shape,
        )
        return answer[:-1]


def _operands(matrix: Matrix) -> tuple[Tensor, Tensor, int]:
    """Numbers, their scales, and the depth by which kernels go: of a matrix in groups, a group."""
    if isinstance(matrix, GroupedMatrix):
        return matrix.values.contiguous(), matrix.scales.contiguous(), GROUP_VALUES
    whole = matrix.contiguous()
    return whole, whole, _TILE_DEPTH  # no kernel reads these scales


def _empty(num_rows: int, matrix: Matrix, device: torch.device) -> Tensor:
    numbers = matrix.values if isinstance(matrix, GroupedMatrix) else matrix
    return torch.empty((num_rows, numbers.shape[-2]), dtype=torch.float32, device=device)


@triton.jit
def _summed(
    lines,
    is_line,
    matrix,
    scales,
    column,
    num_columns,
    depth,
    end,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
    IS_GROUPED: tl.constexpr,
):
    """A tile of a product, [TILE_ROWS, TILE_COLUMNS], summed up to the depth `end` in steps of
    TILE_DEPTH. `lines` are where rows begin. The sum over a group is exact numbers times rows, and
    is then scaled."""
    total = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
    is_column = column < num_columns
    for begin in range(0, end, TILE_DEPTH):
        inner = begin + tl.arange(0, TILE_DEPTH)
        is_inside = inner < depth
        left = tl.load(
            lines[:, None] + inner[None, :],
            mask=is_line[:, None] & is_inside[None, :],
            other=0.0,
        )
        right = tl.load(
            matrix + column[:, None] * depth + inner[None, :],
            mask=is_column[:, None] & is_inside[None, :],
            other=0,
        ).to(left.dtype)
        if IS_GROUPED:
            scale = tl.load(
                scales + column * (depth // TILE_DEPTH) + begin // TILE_DEPTH,
                mask=is_column,
                other=0.0,
            ).to(tl.float32)
            group = tl.dot(left, right.T, input_precision="ieee")
            total += group * scale[None, :]
        else:
            total = tl.dot(left, right.T, total, input_precision="ieee")
    return total


@triton.jit
def _product(
    rows,
    matrix,
    scales,
    product,
    num_columns,
    depth,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
    IS_GROUPED: tl.constexpr,
):
    """A tile of `product`, [n, num_columns], n a multiple of TILE_ROWS."""
    row = tl.program_id(0).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = tl.program_id(1).to(tl.int64) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    lines, is_line = rows + row * depth, row >= 0
    total = _summed(
        *(lines, is_line, matrix, scales, column, num_columns, depth, depth),
        *(TILE_ROWS, TILE_COLUMNS, TILE_DEPTH, IS_GROUPED),
    )
    tl.store(
        product + row[:, None] * num_columns + column[None, :],
        total,
        mask=(column < num_columns)[None, :],
    )


@triton.jit(do_not_specialize=["num_rows"])
def _expert_product(
    rows,
    matrix,
    scales,
    product,
    tile_rows,
    tile_experts,
    num_rows,
    num_experts,
    num_columns,
    depth,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
    IS_GROUPED: tl.constexpr,
):
    """A tile of `product`, [t * TILE_ROWS, num_columns], of the rows and the expert of the tile."""
    line = tl.program_id(0).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = tl.program_id(1).to(tl.int64) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    expert = tl.load(tile_experts + tl.program_id(0))
    is_real = expert < num_experts
    row = tl.load(tile_rows + line)
    mine = tl.where(is_real, expert, 0) * num_columns * depth
    total = _summed(
        *(rows + row * depth, row < num_rows, matrix + mine),
        *(scales + mine // TILE_DEPTH, column, num_columns, depth, tl.where(is_real, depth, 0)),
        *(TILE_ROWS, TILE_COLUMNS, TILE_DEPTH, IS_GROUPED),
    )
    tl.store(
        product + line[:, None] * num_columns + column[None, :],
        total,
        mask=(column < num_columns)[None, :],
    )


@triton.jit
def _normed(rows, gain, normed, size, epsilon, WIDTH: tl.constexpr):
    """One row of `normed`, [n, size]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    values = tl.load(rows + row * size + column, mask=column < size, other=0.0)
    power = tl.sum(values * values, axis=0) / size
    gains = tl.load(gain + column, mask=column < size, other=0.0)
    tl.store(
        normed + row * size + column,
        values * (1.0 / tl.sqrt(power + epsilon)) * gains,
        mask=column < size,
    )


@triton.jit(do_not_specialize=["num_rows", "table_length"])
def _attended(
    queries,
    pool,
    tile_rows,
    tile_positions,
    tile_blocks,
    tables,
    parts,
    num_rows,
    kv_heads,
    table_length,
    block_stride,
    window,
    BLOCK_TOKENS: tl.constexpr,
    SPLIT_BLOCKS: tl.constexpr,
    QUERY_ROWS: tl.constexpr,
    SHARED: tl.constexpr,
    LINES: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The weighted values of one tile, head of keys and split, not divided by the sum of weights;
    behind them that sum and the highest score. A line is a row of the tile and one of the SHARED
    heads of queries that share the head of keys."""
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    line, column, token = tl.arange(0, LINES), tl.arange(0, WIDTH), tl.arange(0, BLOCK_TOKENS)
    is_line = line < QUERY_ROWS * SHARED
    row = tl.load(tile_rows + tile * QUERY_ROWS + line // SHARED, mask=is_line, other=num_rows)
    position = tl.load(tile_positions + tile * QUERY_ROWS + line // SHARED, mask=is_line, other=-1)
    is_column = column < SIZE
    query = tl.load(
        queries
        + (row * kv_heads * SHARED + head * SHARED + line % SHARED)[:, None] * SIZE
        + column[None, :],
        mask=(row < num_rows)[:, None] & is_column[None, :],
        other=0.0,
    ).to(pool.dtype.element_ty)
    most = tl.full((LINES,), float("-inf"), tl.float32)
    total = tl.zeros((LINES,), tl.float32)
    mixed = tl.zeros((LINES, WIDTH), tl.float32)
    end = tl.minimum(tl.load(tile_blocks + tile), (split + 1) * SPLIT_BLOCKS)
    for index in range(split * SPLIT_BLOCKS, end):
        block = tl.load(tables + tile * table_length + index)
        keys = pool + block * block_stride + head * BLOCK_TOKENS * SIZE
        place = token[:, None] * SIZE + column[None, :]
        key = tl.load(keys + place, mask=is_column[None, :], other=0.0)
        at = index * BLOCK_TOKENS + token
        seen = at[None, :] <= position[:, None]
        if window > 0:
            seen = seen & (at[None, :] > position[:, None] - window)
        scores = tl.dot(query, key.T, input_precision="ieee")
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, axis=1))
        against = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - against[:, None])
        kept = tl.exp(most - against)
        # What lies behind a sequence's tokens may be no number, which a weight of 0 leaves one.
        is_seen = tl.max(seen.to(tl.int32), axis=0) > 0
        values = keys + kv_heads * BLOCK_TOKENS * SIZE
        value = tl.load(values + place, mask=is_seen[:, None] & is_column[None, :], other=0.0)
        total = total * kept + tl.sum(weights, axis=1)
        mixed = mixed * kept[:, None] + tl.dot(
            weights.to(value.dtype), value, input_precision="ieee"
        )
        most = higher
    num_splits = tl.num_programs(2)
    part = parts + ((tile * kv_heads + head).to(tl.int64) * num_splits + split) * (
        QUERY_ROWS * SHARED * (SIZE + 2)
    )
    own = part + line * (SIZE + 2)
    tl.store(own[:, None] + column[None, :], mixed, mask=is_line[:, None] & is_column[None, :])
    tl.store(own + SIZE, total, mask=is_line)
    tl.store(own + SIZE + 1, most, mask=is_line)


@triton.jit(do_not_specialize=["num_splits"])
def _joined(
    parts,
    tile_rows,
    tile_blocks,
    sinks,
    answer,
    kv_heads,
    num_splits,
    SPLIT_BLOCKS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    QUERY_ROWS: tl.constexpr,
    SHARED: tl.constexpr,
    LINES: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The rows of one tile and head of keys, of their splits in order, behind the sinks."""
    tile, head = tl.program_id(0), tl.program_id(1)
    line, column = tl.arange(0, LINES), tl.arange(0, WIDTH)
    is_line = line < QUERY_ROWS * SHARED
    is_value = is_line[:, None] & (column < SIZE)[None, :]
    most = tl.full((LINES,), float("-inf"), tl.float32)
    total = tl.zeros((LINES,), tl.float32)
    mixed = tl.zeros((LINES, WIDTH), tl.float32)
    if HAS_SINKS:
        most = tl.load(sinks + head * SHARED + line % SHARED)
        total = tl.full((LINES,), 1.0, tl.float32)
    first = parts + (tile * kv_heads + head).to(tl.int64) * num_splits * (
        QUERY_ROWS * SHARED * (SIZE + 2)
    )
    own = first + line * (SIZE + 2)
    for _ in range(0, tl.cdiv(tl.load(tile_blocks + tile), SPLIT_BLOCKS)):
        other = tl.load(own[:, None] + column[None, :], mask=is_value, other=0.0)
        weight = tl.load(own + SIZE, mask=is_line, other=0.0)
        high = tl.load(own + SIZE + 1, mask=is_line, other=float("-inf"))
        higher = tl.maximum(most, high)
        against = tl.where(higher == float("-inf"), 0.0, higher)
        kept, taken = tl.exp(most - against), tl.exp(high - against)
        mixed = mixed * kept[:, None] + other * taken[:, None]
        total = total * kept + weight * taken
        most = higher
        own += QUERY_ROWS * SHARED * (SIZE + 2)
    row = tl.load(tile_rows + tile * QUERY_ROWS + line // SHARED, mask=is_line, other=0)
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    place = (row * kv_heads * SHARED + head * SHARED + line % SHARED)[:, None] * SIZE
    tl.store(answer + place + column[None, :], mixed, mask=is_value)
