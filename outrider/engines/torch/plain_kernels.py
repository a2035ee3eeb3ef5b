"""Kernels of PyTorch's own operations, for CPUs.

Which kernel a library chooses for a product, and in which order it adds up, depends on the shapes
of its operands. So each product has one shape: `tile_rows` rows, or the queries of a tile and
`span_blocks` blocks of keys, with the softmax carried from span to span (Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018). A span of which a row sees nothing leaves that
row's sums as they are, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from outrider.engines.torch.call_plan import BLOCK_TOKENS, QUERY_ROWS
from outrider.engines.torch.kernels import AttentionTiles, ExpertTiles
from outrider.engines.torch.matrices import GroupedMatrix, Matrix

_DENSE_VALUES: Final = 1 << 17
"""Weights of a grouped matrix that are written as f32 at a time, which a core's cache holds."""
_SPAN_BLOCKS: Final = 8
_SPAN_TOKENS: Final = _SPAN_BLOCKS * BLOCK_TOKENS


class PlainKernels:
    """Implements kernels.Kernels."""

    tile_rows = 8
    expert_rows = 8
    span_blocks = _SPAN_BLOCKS

    def product(self, rows: Tensor, matrix: Matrix) -> Tensor:
        tiles = rows.to(matrix.dtype).split(self.tile_rows)
        if isinstance(matrix, GroupedMatrix):
            return _grouped_products(tiles, matrix)
        return torch.cat([functional.linear(tile, matrix) for tile in tiles]).float()

    def expert_products(self, rows: Tensor, matrix: Matrix, tiles: ExpertTiles) -> Tensor:
        # A row of zeros stands for those that a tile lacks.
        whole = functional.pad(rows, (0, 0, 0, 1))
        num_experts, num_columns = _outer_shape(matrix)
        products = rows.new_zeros((*tiles.rows.shape, num_columns))
        for expert in tiles.experts.unique().tolist():
            if expert < num_experts:
                mine = tiles.experts == expert
                lines = whole[tiles.rows[mine]].flatten(0, 1)
                product = self.product(lines, matrix[expert])
                products[mine] = product.reshape(-1, *products.shape[1:])
        return products.flatten(0, 1)

    def normed(self, rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
        power = (rows * rows).mean(-1, keepdim=True)
        return rows * torch.rsqrt(power + epsilon) * gain

    def attended(
        self,
        queries: Tensor,
        pool: Tensor,
        tiles: AttentionTiles,
        window: int,
        sinks: Tensor | None = None,
    ) -> Tensor:
        num_rows, num_heads, size = queries.shape
        num_tiles, kv_heads = len(tiles.rows), pool.shape[2]
        shared = num_heads // kv_heads
        # A row of zeros stands for those that a tile lacks.
        whole = functional.pad(queries.reshape(num_rows, -1), (0, 0, 0, 1))
        grouped = whole[tiles.rows].reshape(num_tiles, QUERY_ROWS, kv_heads, shared, size)
        grouped = grouped.permute(0, 2, 3, 1, 4).reshape(num_tiles, kv_heads, -1, size)
        most = grouped.new_full((*grouped.shape[:3], 1), -torch.inf)
        total = torch.zeros_like(most)
        if sinks is not None:
            most.unflatten(2, (shared, QUERY_ROWS))[:] = sinks.reshape(kv_heads, shared, 1, 1)
            total.fill_(1.0)
        mixed = torch.zeros_like(grouped)
        for first_block in range(0, tiles.tables.shape[1], _SPAN_BLOCKS):
            count = int((tiles.num_blocks > first_block).sum())
            blocks = tiles.tables[:count, first_block : first_block + _SPAN_BLOCKS]
            seen = _seen(tiles.positions[:count], first_block * BLOCK_TOKENS, window)
            held = pool[blocks].permute(2, 0, 3, 1, 4, 5)
            held = held.reshape(2, count, kv_heads, _SPAN_TOKENS, size).float()
            # What lies behind a sequence's tokens may be no number, which a weight of 0 leaves one.
            values = held[1].masked_fill(~seen.any(1)[:, None, :, None], 0.0)
            scores = _products(grouped[:count], held[0].transpose(2, 3))
            scores = scores.masked_fill(~seen.repeat(1, shared, 1)[:, None], -torch.inf)
            higher = torch.maximum(most[:count], scores.amax(-1, keepdim=True))
            against = higher.masked_fill(higher == -torch.inf, 0.0)
            weights = torch.exp(scores - against)
            kept = torch.exp(most[:count] - against)
            total[:count] = total[:count] * kept + weights.sum(-1, keepdim=True)
            mixed[:count] = mixed[:count] * kept + _products(weights, values)
            most[:count] = higher
        # Rows that fill a tile have seen nothing.
        mixed = mixed / total.masked_fill(total == 0.0, 1.0)
        mixed = mixed.reshape(num_tiles, kv_heads, shared, QUERY_ROWS, size).permute(0, 3, 1, 2, 4)
        answer = torch.zeros_like(whole)
        answer[tiles.rows] = mixed.reshape(num_tiles, QUERY_ROWS, -1)
        return answer[:-1].reshape(queries.shape)


def _grouped_products(tiles: Sequence[Tensor], matrix: GroupedMatrix) -> Tensor:
    """[n, out] of tiles of rows, in f32, which holds the matrix's numbers exactly."""
    num_columns, depth = matrix.values.shape
    step = max(16, _DENSE_VALUES // depth)
    wide = [tile.float() for tile in tiles]
    products = wide[0].new_empty((len(wide), len(wide[0]), num_columns))
    for begin in range(0, num_columns, step):
        dense = matrix[begin : begin + step].dense()
        for tile, product in zip(wide, products, strict=True):
            product[:, begin : begin + step] = functional.linear(tile, dense)
    return products.flatten(0, 1)


def _outer_shape(matrix: Matrix) -> tuple[int, int]:
    """Number of experts, and of columns of a product."""
    numbers = matrix.values if isinstance(matrix, GroupedMatrix) else matrix
    return numbers.shape[0], numbers.shape[1]


def _seen(positions: Tensor, first_key: int, window: int) -> Tensor:
    """[t, QUERY_ROWS, _SPAN_TOKENS]: which keys of a span each row of these tiles sees."""
    queries = positions[:, :, None]
    keys = first_key + torch.arange(_SPAN_TOKENS, device=positions.device)
    seen = keys <= queries
    return seen & (keys > queries - window) if window else seen


def _products(ones: Tensor, others: Tensor) -> Tensor:
    """[t, heads, m, n] of [t, heads, m, k] and [t, heads, k, n], one tile after the other."""
    return torch.stack([torch.bmm(one, other) for one, other in zip(ones, others, strict=True)])
