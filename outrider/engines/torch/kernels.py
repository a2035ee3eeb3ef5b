"""The operations of a decoder whose bits could depend on the size of a call, behind one seam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from outrider.engines.torch.matrices import Matrix


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """The tiles of attention of one call, on the device; shapes as in CallPlan."""

    rows: Tensor
    positions: Tensor
    num_blocks: Tensor
    tables: Tensor


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    """Rows sorted by the expert that they go through, t tiles of `Kernels.expert_rows` lines."""

    rows: Tensor
    """[t, lines] the row of each line; n where a tile has fewer."""
    experts: Tensor
    """[t] the expert of each tile; the number of experts: none, and the tile is not computed."""


class Kernels(Protocol):
    """For one device. A row of a result depends on that row and on no other, and neither its bits
    nor the order of its sums on the number of rows."""

    tile_rows: int
    """Rows of a call are a multiple of this."""
    expert_rows: int
    """Lines of a tile of ExpertTiles."""
    span_blocks: int
    """Blocks of a table of AttentionTiles are a multiple of this."""

    def product(self, rows: Tensor, matrix: Matrix) -> Tensor:
        """[n, out] in f32, of [n, in] rows and an [out, in] matrix."""
        ...

    def expert_products(self, rows: Tensor, matrix: Matrix, tiles: ExpertTiles) -> Tensor:
        """[t * expert_rows, out] in f32, of [n, in] rows and an [experts, out, in] matrix; lines
        without a row, and of tiles without an expert, are 0."""
        ...

    def normed(self, rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
        """[..., size] each over its root mean square, times the gain [size]."""
        ...

    def attended(
        self,
        queries: Tensor,
        pool: Tensor,
        tiles: AttentionTiles,
        window: int,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """[n, heads, size] of scaled queries, over one layer of the pool, [blocks, 2, kv heads,
        BLOCK_TOKENS, size]. A row sees the keys of its sequence up to its own position, and of
        these the newest `window`, if that is not 0. `sinks` [heads] are scores without a value,
        which take their share of the weights."""
        ...
