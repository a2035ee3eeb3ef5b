"""How far an engine's rows are from the reference's (pure)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Averages over all positions of the texts that have a next token."""

    num_positions: int
    reference_perplexity: float
    """Perplexity of the texts with the model file's own weights in f32."""
    perplexity: float
    """Perplexity of the same texts with the engine."""
    kl: float
    """Mean Kullback-Leibler divergence of the engine's next-token distribution from the
    reference's, nats: 0 if they are equal."""
    argmax_agreement: float
    """Share of positions at which both have the same likeliest token."""

    @property
    def ppl_ratio(self) -> float:
        """The engine's perplexity over the reference's."""
        return self.perplexity / self.reference_perplexity


@dataclass(frozen=True, slots=True)
class Bounds:
    """Largest differences at which an engine still counts as serving the model."""

    max_ppl_ratio: float
    max_kl: float
    min_argmax_agreement: float

    def broken_by(self, found: Fidelity) -> list[str]:
        """A sentence part for each bound that is broken."""
        agreed = found.argmax_agreement
        least = self.min_argmax_agreement
        checks = (
            (
                found.ppl_ratio <= self.max_ppl_ratio,
                f"{found.ppl_ratio:.3f} times the perplexity (at most {self.max_ppl_ratio:g})",
            ),
            (found.kl <= self.max_kl, f"a KL of {found.kl:.4f} (at most {self.max_kl:g})"),
            (
                agreed >= least,
                f"the same likeliest token at {agreed:.1%} of positions (at least {least:.0%})",
            ),
        )
        return [words for holds, words in checks if not holds]


SERVED: Final = Bounds(max_ppl_ratio=1.01, max_kl=0.015, min_argmax_agreement=0.94)
"""For an engine as it is served: bf16 between weight products changes the likeliest token at 4 to 5
% of positions, inputs of products rounded to 8 bits at about as many."""
IN_F32: Final = Bounds(max_ppl_ratio=1.01, max_kl=0.015, min_argmax_agreement=0.97)
"""For arithmetic in f32, inputs of products as they are: what remains are the weights."""


class Tally:
    """Sums over rows; call `add` for all rows, then `figures`."""

    def __init__(self) -> None:
        self._count = 0
        self._reference_loss = 0.0
        self._loss = 0.0
        self._kl = 0.0
        self._agreed = 0

    def add(self, reference: Floats, engine: Floats, following: Sequence[int]) -> None:
        """[n, V] logits of both at the same n positions, and the n ids that follow them."""
        if reference.shape != engine.shape or len(reference) != len(following):
            raise ValueError(
                f"{reference.shape} reference and {engine.shape} engine logits for "
                f"{len(following)} ids"
            )
        expected, found = log_softmax(reference), log_softmax(engine)
        at = np.arange(len(following)), np.asarray(following, np.intp)
        self._count += len(following)
        self._reference_loss -= float(expected[at].sum(dtype=np.float64))
        self._loss -= float(found[at].sum(dtype=np.float64))
        self._kl += float((np.exp(expected) * (expected - found)).sum(dtype=np.float64))
        self._agreed += int((reference.argmax(1) == engine.argmax(1)).sum())

    def figures(self) -> Fidelity:
        """Raises ValueError if nothing was added."""
        if not self._count:
            raise ValueError("no position was compared")
        return Fidelity(
            num_positions=self._count,
            reference_perplexity=math.exp(self._reference_loss / self._count),
            perplexity=math.exp(self._loss / self._count),
            kl=self._kl / self._count,
            argmax_agreement=self._agreed / self._count,
        )


def log_softmax(logits: Floats) -> Floats:
    """[n, V] logarithms of each row's probabilities, nats."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True)
    return np.asarray(shifted - np.log(total).astype(logits.dtype))
