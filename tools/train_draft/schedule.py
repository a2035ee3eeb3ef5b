"""Progress of training, and the learning rate and loss weights that depend on it. Without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

_WARM_UP = 0.02
_FINAL_RATE = 0.02
_ACCEPTANCE_FROM = 0.45
_ACCEPTANCE_TO = 0.65


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run of `steps` steps, or of `seconds` seconds if `steps` is 0."""

    steps: int
    seconds: float
    peak_rate: float

    def progress(self, step: int, elapsed_s: float) -> float:
        """Progress between 0 and 1; at 1 the run is over."""
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
    """Weights of the parts of the loss; they sum to 1."""

    divergence: float
    """Forward KL: the target's whole distribution."""
    acceptance: float
    """Chance that target and draft choose alike when sampling."""
    argmax: float
    """Cross-entropy on the target's likeliest id, which greedy replies need."""


def loss_weights(progress: float) -> LossWeights:
    """Loss weights: forward KL at first, since its gradient is dense; later mostly the acceptance
    that drafts need (as LK losses, arXiv 2602.23881)."""
    along = (progress - _ACCEPTANCE_FROM) / (_ACCEPTANCE_TO - _ACCEPTANCE_FROM)
    turned = min(1.0, max(0.0, along))
    acceptance, argmax = 0.45 * turned, 0.15 + 0.15 * turned
    return LossWeights(1 - acceptance - argmax, acceptance, argmax)
