"""Products by the vendor's own kernels, whose bits may depend on the batch: for `exact = false`,
and to measure what exactness costs."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from outrider.engines.torch.kernels import AttentionTiles, ExpertTiles, Kernels
from outrider.engines.torch.matrices import GroupedMatrix, Matrix


class LibraryKernels:
    """Implements kernels.Kernels but for its promise. Norms, attention, experts and matrices in
    groups are left to the exact kernels."""

    def __init__(self, exact: Kernels) -> None:
        self._exact = exact
        # Else nearly every call would have a shape, and a CUDA graph, of its own.
        self.tile_rows = exact.tile_rows
        self.expert_rows = exact.expert_rows
        self.span_blocks = exact.span_blocks

    def product(self, rows: Tensor, matrix: Matrix) -> Tensor:
        if isinstance(matrix, GroupedMatrix):
            return self._exact.product(rows, matrix)
        return functional.linear(rows.to(matrix.dtype), matrix).float()

    def expert_products(self, rows: Tensor, matrix: Matrix, tiles: ExpertTiles) -> Tensor:
        return self._exact.expert_products(rows, matrix, tiles)

    def normed(self, rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
        return self._exact.normed(rows, gain, epsilon)

    def attended(
        self,
        queries: Tensor,
        pool: Tensor,
        tiles: AttentionTiles,
        window: int,
        sinks: Tensor | None = None,
    ) -> Tensor:
        return self._exact.attended(queries, pool, tiles, window, sinks)
