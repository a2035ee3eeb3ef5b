"""What products and attention cost where bits may depend on the batch: the vendor's own kernels."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from outrider.engines.torch.kernels import AttentionTiles, Kernels


class LibraryKernels:
    """Products by PyTorch as it sees fit; norms and attention are the engine's."""

    def __init__(self, exact: Kernels) -> None:
        self._exact = exact
        self.tile_rows = 1
        self.span_blocks = exact.span_blocks

    def product(self, rows: Tensor, matrix: Tensor) -> Tensor:
        return functional.linear(rows.to(matrix.dtype), matrix).float()

    def normed(self, rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
        return self._exact.normed(rows, gain, epsilon)

    def attended(self, queries: Tensor, pool: Tensor, tiles: AttentionTiles, window: int) -> Tensor:
        return self._exact.attended(queries, pool, tiles, window)
