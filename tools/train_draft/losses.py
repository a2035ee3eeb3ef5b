"""Loss of the student per reply position."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.train_draft.schedule import LossWeights

ACCEPTANCE_TEMPERATURE = 0.8
_LEAST = 1e-6
_LEAST_CHANCE = 1e-30


def loss(
    logits: Tensor, top_rows: Tensor, top_logprobs: Tensor, weights: Tensor, mix: LossWeights
) -> Tensor:
    """Mean loss over positions, from head logits [N, R] and the target's K likeliest ids (see
    student.batches.Batch).

    All ids that are not among these K, or have no head row, are one further event. The target's
    mass there is 1 minus the rest, and so is the student's, so a student that cannot give the
    target's token learns to be unsure.
    """
    kept = top_rows >= 0
    at = top_rows.clamp(min=0)
    target = top_logprobs.exp() * kept
    logq = _GatheredLogSoftmax.apply(logits, at)
    total = mix.divergence * _divergence(target, logq, kept)
    total = total - mix.argmax * logq[:, 0] * kept[:, 0]
    if mix.acceptance:
        total = total + mix.acceptance * _acceptance_loss(logits, at, top_logprobs, kept)
    return (total * weights).sum() / weights.sum()


class _GatheredLogSoftmax(torch.autograd.Function):
    """`log_softmax(logits, 1).gather(1, at)`, in one pass over the many logits each way: they are
    a third of the time otherwise."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, at: Tensor) -> Tensor:
        """[N, K] of logits [N, R] at columns [N, K], which may repeat."""
        chances = torch.softmax(logits, 1, dtype=torch.float32)
        ctx.save_for_backward(chances, at)
        ctx.kind = logits.dtype
        return chances.gather(1, at).clamp(min=_LEAST_CHANCE).log()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """d log_softmax_i / d logit_j is [i = j] - softmax_j."""
        chances, at = ctx.saved_tensors
        spread = chances.mul_(-gradient.sum(1, keepdim=True))
        return spread.scatter_add_(1, at, gradient).to(ctx.kind), None


def _divergence(target: Tensor, logq: Tensor, kept: Tensor) -> Tensor:
    """Forward KL [N], with the events outside the K as one."""
    rest = (1 - target.sum(1)).clamp(min=_LEAST)
    rest_q = (1 - (logq.exp() * kept).sum(1)).clamp(min=_LEAST)
    inside = torch.where(kept, target * (target.clamp(min=_LEAST).log() - logq), 0.0)
    return inside.sum(1) + rest * (rest.log() - rest_q.log())


def _acceptance_loss(logits: Tensor, at: Tensor, top_logprobs: Tensor, kept: Tensor) -> Tensor:
    """-log of sum min(p, q) [N] at ACCEPTANCE_TEMPERATURE: the chance that a draft from q
    survives against p (arXiv 2211.17192)."""
    target = F.softmax(top_logprobs / ACCEPTANCE_TEMPERATURE, 1)
    draft = _GatheredLogSoftmax.apply(logits / ACCEPTANCE_TEMPERATURE, at).exp()
    overlap = torch.minimum(target, draft) * kept
    return -overlap.sum(1).clamp(min=1e-3).log()
