"""From a row of the draft model to a guess: the token the target is likely to choose there.

With the session's own noise, seed and filters (shared-noise coupling, arXiv 2408.07978): where
the two models' distributions are close, so are their choices, at any temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.sampling.noise import Ids
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Sampler

Logits = npt.NDArray[np.float32]
_CERTAIN = 0.85
"""No second guess is looked for where the first is this likely."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """From the largest probability of a row (softmax, temperature 1) to the chance that the target
    agrees: piecewise linear on an even grid of 0 .. 1."""

    greedy: tuple[float, ...] = (0.0, 1.0)
    sampled: tuple[float, ...] = (0.0, 1.0)

    def chance(self, confidence: float, *, sampled: bool) -> float:
        """Chance of agreement."""
        values = self.sampled if sampled else self.greedy
        return float(np.interp(confidence * (len(values) - 1), range(len(values)), values))


@dataclass(frozen=True, slots=True)
class Opinion:
    """A guess for one token."""

    token: int
    chance: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the model says of one token."""

    best: Opinion
    second: Opinion | None = None
    """What it is if not the best; None where that hardly matters."""


class Chooser:
    """Chooses for one session."""

    def __init__(
        self,
        params: SamplingParams,
        vocabulary_size: int,
        prompt: Sequence[int],
        calibration: Calibration,
    ) -> None:
        """Raises InvalidSamplingError for ids outside the vocabulary."""
        self._sampler = Sampler(params, vocabulary_size, prompt)
        self._calibration = calibration
        self._sampled = params.temperature > 0.0

    def observe(self, ids: Sequence[int]) -> None:
        """These became final."""
        for token in ids:
            self._sampler.observe(token)

    def propose(
        self, logits: Logits, ids: Ids | None, position: int, ahead: Sequence[int]
    ) -> Proposal:
        """The guess for absolute `position`, from a row [c] of `ids` [c] (None: column j is id j);
        `ahead` are the tokens before it that are not final. Raises EngineError for a bad row."""
        sampler = self._sampler.after(ahead)
        token = sampler.choose(logits, position, ids)
        mass = np.exp(logits - logits.max())
        mass /= mass.sum()
        column = _column(token, ids)
        chance = self._calibration.chance(float(mass.max()), sampled=self._sampled)
        best = Opinion(token, chance)
        if chance >= _CERTAIN:
            return Proposal(best)
        rest = logits.copy()
        rest[column] = -np.inf
        if not np.isfinite(rest.max()):
            return Proposal(best)
        other = sampler.choose(rest, position, ids)
        share = float(mass[_column(other, ids)]) / max(1e-6, 1.0 - float(mass[column]))
        return Proposal(best, Opinion(other, (1.0 - chance) * min(1.0, share)))


def _column(token: int, ids: Ids | None) -> int:
    return token if ids is None else int(np.flatnonzero(ids == token)[0])
