"""Training with the weights that will be shipped."""

from __future__ import annotations

import torch
from torch import Tensor

from tools.train_draft.artifact.blocks import BLOCK, MOST


def as_shipped(weight: Tensor) -> Tensor:
    """The values of `artifact.blocks.pack`; gradients pass as if nothing had been rounded (the
    straight-through estimator, arXiv 1308.3432)."""
    with torch.no_grad():
        blocks = weight.view(-1, BLOCK)
        least = blocks.amin(1, keepdim=True).clamp(max=0)
        most = blocks.amax(1, keepdim=True).clamp(min=0)
        scale = ((most - least) / MOST).half().float().clamp(min=1e-8)
        zero = (-least / scale).round().clamp(0, MOST)
        values = (blocks / scale).round_().add_(zero).clamp_(0, MOST)
        change = values.sub_(zero).mul_(scale).view_as(weight).sub_(weight)
    return weight + change
