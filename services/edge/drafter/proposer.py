"""From a row of the draft model to a draft: the token that the target is likely to choose there
(pure).

It is chosen with the session's own noise, seed and filters (shared-noise coupling, arXiv
2408.07978): where the two models' distributions are close, so are their choices, at any
temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.engines.candidates import rescores
from outrider.engines.draft_calibration import DraftCalibration, sampled_confidence
from outrider.errors import EngineError
from outrider.sampling.gumbel import Ids, Noise, group_size_of
from outrider.sampling.params import SamplingParams
from outrider.sampling.sampler import Sampler

Logits = npt.NDArray[np.float32]
Columns = npt.NDArray[np.intp]
_CERTAIN = 0.85
"""No second token is looked for where the best is this likely."""
_DEPTH = 8.0
"""How far below the best, in units of the temperature, a candidate for sampling may lie."""
_MOST_CANDIDATES = 64


@dataclass(frozen=True, slots=True)
class TokenEstimate:
    """A token, and how likely it is the right one."""

    token: int
    probability: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """The model's estimates for one token."""

    best: TokenEstimate
    second: TokenEstimate | None = None
    """The token if not the best one; None where the best is nearly certain."""


class Proposer:
    """Proposes tokens for one session."""

    def __init__(
        self,
        params: SamplingParams,
        vocabulary_size: int,
        prompt: Sequence[int],
        calibration: DraftCalibration,
    ) -> None:
        """Raises InvalidSamplingError for ids outside the vocabulary."""
        self._sampler = Sampler(params, vocabulary_size, prompt)
        self._calibration = calibration
        self._num_prompt = len(prompt)
        self._temperature = params.temperature
        self._seed, self._members = params.seed, group_size_of(vocabulary_size)
        self._rescores = rescores(params)

    def observe(self, ids: Sequence[int]) -> None:
        """These tokens became final."""
        for token in ids:
            self._sampler.observe(token)

    def propose(
        self, logits: Logits, ids: Ids | None, position: int, ahead: Sequence[int]
    ) -> Proposal:
        """The draft for absolute `position`, from a row [c] of `ids` [c] (None: column j is id j);
        `ahead` are the tokens before it that are not final. Raises EngineError for a bad row."""
        top = float(logits.max())
        if not math.isfinite(top):
            raise EngineError("the draft model's scores are not finite")
        total = float(np.exp(logits - np.float32(top)).sum())
        sampler = self._sampler.after(ahead)
        columns = self._shortlist(logits, top)
        column = self._choose(sampler, logits, ids, columns, position)
        if self._temperature == 0.0:
            probability = self._probability(1.0 / total, position)
            if probability >= _CERTAIN:
                return Proposal(TokenEstimate(_token(column, ids), probability))
        rest = logits.copy()
        rest[column] = -np.inf
        other = self._choose(sampler, rest, ids, columns, position) if len(logits) > 1 else column
        if self._temperature > 0.0:
            lead = self._lead(logits, ids, column, other, position)
            probability = self._probability(sampled_confidence(lead), position)
        best = TokenEstimate(_token(column, ids), probability)
        if probability >= _CERTAIN or other == column:
            return Proposal(best)
        first, second = (math.exp(float(logits[at]) - top) / total for at in (column, other))
        share = min(1.0, second / max(1e-6, 1.0 - first))
        return Proposal(best, TokenEstimate(_token(other, ids), (1.0 - probability) * share))

    def _probability(self, confidence: float, position: int) -> float:
        """Probability that the target agrees, at absolute `position`."""
        sampled = self._temperature > 0.0
        return self._calibration.chance(confidence, position - self._num_prompt, sampled=sampled)

    def _lead(
        self, logits: Logits, ids: Ids | None, column: int, other: int, position: int
    ) -> float:
        """By how much one column's noisy score leads another's, in units of scores; infinite
        without another."""
        if other == column:
            return math.inf
        low, high = sorted((column, other))  # noise is asked for by ascending ids
        pair = np.array([_token(low, ids), _token(high, ids)], np.int32)
        noise = Noise(self._seed, position, self._members).of(pair) * self._temperature
        lead = float(logits[high]) + float(noise[1]) - float(logits[low]) - float(noise[0])
        return lead if high == column else -lead

    def _shortlist(self, logits: Logits, top: float) -> Columns | None:
        """The columns that noise may lift to the top, but for a percent or so of all cases; None:
        all, where scores are changed before the choice."""
        if self._rescores or self._temperature == 0.0:
            return None
        columns = np.flatnonzero(logits >= top - _DEPTH * self._temperature)
        if len(columns) > _MOST_CANDIDATES:
            best = np.argpartition(logits[columns], -_MOST_CANDIDATES)[-_MOST_CANDIDATES:]
            columns = np.sort(columns[best])
        return columns

    def _choose(
        self,
        sampler: Sampler,
        logits: Logits,
        ids: Ids | None,
        columns: Columns | None,
        position: int,
    ) -> int:
        """The column of the choice."""
        if columns is None and not self._rescores:
            return int(logits.argmax())
        if columns is None:
            return _column(sampler.choose(logits, position, ids), ids)
        tokens = columns.astype(np.int32) if ids is None else ids[columns]
        scores = logits[columns]
        if not np.isfinite(scores.max()):
            return int(columns[0])
        token = sampler.choose(scores, position, tokens)
        return int(columns[np.flatnonzero(tokens == token)[0]])


def _token(column: int, ids: Ids | None) -> int:
    return column if ids is None else int(ids[column])


def _column(token: int, ids: Ids | None) -> int:
    return token if ids is None else int(np.flatnonzero(ids == token)[0])
