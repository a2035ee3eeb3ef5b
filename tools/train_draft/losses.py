"""What the student is trained for: the loss by reply position, and learning rate and loss weights
by progress."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ACCEPTANCE_TEMPERATURE = 0.8
_LEAST = 1e-6
_LEAST_CHANCE = 1e-30


def loss(
    logits: Tensor, top_rows: Tensor, top_logprobs: Tensor, weights: Tensor, mix: LossWeights
) -> Tensor:
    """Of head logits [N, R] against the target's K likeliest ids (see student.batches.Batch):
    the mean over positions.

    What is not among these K, or has no head row, is one further event: the target's mass there
    is 1 minus the rest, and so is the student's, so a student that cannot say the target's word is
    taught to be unsure.
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


_WARM_UP = 0.02
_FINAL_RATE = 0.02
_ACCEPTANCE_FROM = 0.45
_ACCEPTANCE_TO = 0.65


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run of so many steps, or of so many seconds where steps is 0."""

    steps: int
    seconds: float
    peak_rate: float

    def progress(self, step: int, elapsed_s: float) -> float:
        """Between 0 and 1; at 1 the run is over."""
        share = step / self.steps if self.steps else elapsed_s / self.seconds
        return min(1.0, share)

    def rate(self, progress: float) -> float:
        """The learning rate: linear warm-up, cosine decay."""
        if progress < _WARM_UP:
            return self.peak_rate * (progress / _WARM_UP + 1e-3)
        along = (progress - _WARM_UP) / (1 - _WARM_UP)
        cosine = 0.5 * (1 + math.cos(math.pi * along))
        return self.peak_rate * (_FINAL_RATE + (1 - _FINAL_RATE) * cosine)


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Of the parts of the loss; they sum to 1."""

    divergence: float
    """Forward KL: the target's whole distribution."""
    acceptance: float
    """Chance that target and draft choose alike when sampling."""
    argmax: float
    """Cross-entropy on the target's likeliest id: what greedy replies need."""


def loss_weights(progress: float) -> LossWeights:
    """Forward KL at first, since its gradient is dense; then mostly what acceptance needs (as LK
    losses, arXiv 2602.23881)."""
    along = (progress - _ACCEPTANCE_FROM) / (_ACCEPTANCE_TO - _ACCEPTANCE_FROM)
    turned = min(1.0, max(0.0, along))
    acceptance, argmax = 0.45 * turned, 0.15 + 0.15 * turned
    return LossWeights(1 - acceptance - argmax, acceptance, argmax)
