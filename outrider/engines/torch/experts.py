"""A feed-forward part of experts, of which each row goes through those with the largest scores.

A row's result depends on the row alone: rows are sorted by expert into tiles of one shape, and its
experts' results are added up in the order of their scores. Nothing here waits for the device, and
every shape depends on the number of rows alone, so a CUDA graph can hold it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from outrider.engines.torch.kernels import ExpertTiles, Kernels
from outrider.engines.torch.matrices import Product

_SHARPNESS: Final = 1.702
_LIMIT: Final = 7.0
"""Of gpt-oss's gated unit."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Weights of one layer's experts."""

    router: Product
    """[experts, width] in f32: a score that is rounded could choose another expert."""
    gate_and_up: Product
    """[experts, 2 * inner, width]"""
    down: Product
    """[experts, width, inner]"""
    num_chosen: int

    def mixed(self, rows: Tensor, is_filling: Tensor, kernels: Kernels) -> Tensor:
        """[n, width] of [n, width] rows; those of which `is_filling` [n] holds take no expert's
        time, and are 0."""
        scores = kernels.product(rows, self.router.matrix)
        if self.router.bias is not None:
            scores = scores + self.router.bias
        num_experts = scores.shape[1]
        chosen, shares = self._chosen(scores)
        chosen = chosen.masked_fill(is_filling[:, None], num_experts)
        tiles, lines = sorted_by_expert(chosen, num_experts, kernels.expert_rows)
        own = tiles.experts.clamp(max=num_experts - 1).repeat_interleave(kernels.expert_rows)
        both = _product(kernels, rows, self.gate_and_up, tiles, own)
        gate, up = both.chunk(2, dim=1)
        gate = gate.clamp(max=_LIMIT)
        opened = gate * torch.sigmoid(gate * _SHARPNESS) * (up.clamp(-_LIMIT, _LIMIT) + 1)
        places = torch.arange(len(opened), device=rows.device).reshape(tiles.rows.shape)
        again = ExpertTiles(places, tiles.experts)
        apart = _product(kernels, opened, self.down, again, own)[lines]
        mixed = torch.zeros_like(rows)
        for rank in range(self.num_chosen):
            mixed = mixed + apart[:, rank] * shares[:, rank, None]
        return mixed.masked_fill(is_filling[:, None], 0.0)

    def _chosen(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """[n, num_chosen] experts, best first, of equals the lower number; and their shares, the
        softmax of their scores."""
        scores, experts = scores.sort(dim=1, descending=True, stable=True)
        weights = torch.exp(scores[:, : self.num_chosen] - scores[:, :1])
        total = weights[:, 0]
        for rank in range(1, self.num_chosen):
            total = total + weights[:, rank]
        return experts[:, : self.num_chosen], weights / total[:, None]


def sorted_by_expert(
    chosen: Tensor, num_experts: int, tile_rows: int
) -> tuple[ExpertTiles, Tensor]:
    """The tiles that rows [n, k] go through, and the line [n, k] of each row and choice.
    `num_experts` stands for no expert."""
    flat = chosen.flatten()
    is_mine = (flat[:, None] == torch.arange(num_experts + 1, device=flat.device)).long()
    counts = is_mine.sum(0)
    ends = (-(-counts // tile_rows) * tile_rows).cumsum(0)
    begins = functional.pad(ends, (1, 0))[:-1]
    rank = (is_mine.cumsum(0) * is_mine).sum(1) - 1
    lines = begins[flat] + rank
    num_tiles = len(flat) // tile_rows + min(num_experts + 1, len(flat))
    rows = flat.new_full((num_tiles * tile_rows,), len(chosen))
    rows[lines] = torch.arange(len(flat), device=flat.device) // chosen.shape[1]
    first = torch.arange(0, len(rows), tile_rows, device=flat.device)
    experts = (first[:, None] >= ends).sum(1).clamp(max=num_experts)
    return ExpertTiles(rows.reshape(num_tiles, tile_rows), experts), lines.reshape(chosen.shape)


def _product(
    kernels: Kernels, rows: Tensor, factor: Product, tiles: ExpertTiles, experts: Tensor
) -> Tensor:
    """[lines, out] with the bias of each line's expert."""
    product = kernels.expert_products(rows, factor.matrix, tiles)
    return product if factor.bias is None else product + factor.bias[experts]
