"""One session's choice of tokens: a function of only (row, history, position, seed).

Order of operations, fixed:

1. repetition, presence, frequency penalties: on the model's own scores, since the first is
   multiplicative and must not see a bias;
2. logit bias: additive, after the penalties, so that a bias of +-100 decides;
3. the grammar's mask: ids that it does not allow leave the row, so no bias brings one back, and
   all later steps see only the others: top_k counts allowed ids, min_p compares with the best
   of them, top_p is a share of their probability. 1 and 2 change each score for itself, so the
   mask could stand before them as well;
4. temperature;
5. min_p, top_k, top_p (see `logits_processors`): on the distribution sampled from;
6. noise and argmax (see `gumbel`, and `whole_rows` if 5 drops nothing), or only argmax at
   temperature 0, where 4 and 5 cannot change the result.

Every row is processed by itself, in float64 after the logits (but for top_p's mass), so neither
batch nor drafts matter. numpy's log and exp may differ in the last bit between CPU families; a
choice then differs only at a tie to within 1e-13, or of 1e-7 at the edge of top_p's set.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from outrider.errors import EngineError, InvalidSamplingError
from outrider.sampling import whole_rows
from outrider.sampling.constraint import Constraint
from outrider.sampling.gumbel import (
    Floats,
    Ids,
    Noise,
    Scores,
    group_size_of,
    gumbel_argmax,
)
from outrider.sampling.logits_processors import History, any_filter, kept
from outrider.sampling.params import SamplingParams
from outrider.sampling.whole_rows import Rivals, find_rivals


class Sampler:
    """Chooses the ids of one reply. `observe` every committed id, in order."""

    def __init__(
        self,
        params: SamplingParams,
        vocabulary_size: int,
        prompt: Sequence[int],
        constraint: Constraint | None = None,
    ) -> None:
        """`constraint` is that of `params` (is_constrained), at the reply's beginning; the sampler
        advances it. Raises InvalidSamplingError for ids outside the vocabulary, for too large a
        vocabulary, and for a constraint that is missing, which would change the choice."""
        if params.is_constrained != (constraint is not None):
            raise InvalidSamplingError("a grammar has to be compiled before tokens are chosen")
        _check_ids("logit_bias", list(params.logit_bias), vocabulary_size)
        _check_ids("stop_ids", params.stop_ids, vocabulary_size)
        self.params = params
        self._constraint = constraint
        self._vocabulary_size = vocabulary_size
        self._group_size = group_size_of(vocabulary_size)
        self._drawn: dict[int, Noise] = {}
        """By absolute position; see `prepare`."""
        self._filtered = any_filter(params)
        penalized = (
            params.repetition_penalty != 1.0
            or params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
        )
        self._history = History(prompt) if penalized else None
        biased = sorted(params.logit_bias.items())
        self._biased_ids = np.array([token for token, _ in biased], dtype=np.int32)
        self._biases = np.array([bias for _, bias in biased], dtype=np.float64)
        self._is_argmax = (
            params.temperature == 0.0 and not penalized and not biased and constraint is None
        )
        """Whether the choice is the best of the row as it is."""
        self._precision: np.dtype[Any] = np.dtype(np.float64 if penalized or biased else np.float32)
        """Type of the scores sampled from."""
        self.only_noise_decides = (
            params.temperature > 0.0
            and not (penalized or biased or self._filtered)
            and constraint is None
        )
        """Whether nothing but noise comes between the rows and the choices: see `rivals`."""

    def observe(self, token: int) -> None:
        """Add a committed token of the reply to the history. Raises InvalidRequestError for one
        that the constraint does not allow."""
        if self._constraint is not None:
            self._constraint.advance(token)
        if self._history is not None:
            self._history.add(token)

    def after(self, ids: Sequence[int]) -> Sampler:
        """The sampler behind these ids, which are not final: this one does not remember them. Not
        under a grammar, whose position is that of the committed ids."""
        assert self._constraint is None, "only drafters look ahead, and they know no grammar"
        if self._history is None or not ids:
            return self
        other = copy.copy(self)
        other._history = copy.deepcopy(self._history)
        for token in ids:
            other.observe(token)
        return other

    def prepare(self, first: int, count: int) -> None:
        """Draw the noise of `count` positions from absolute `first` on ahead of time: it depends on
        nothing else. Noise of other positions is drawn on demand."""
        if self.params.temperature > 0.0:
            self._drawn = {at: self._noise(at) for at in range(first, first + count)}
            for noise in self._drawn.values():
                noise.lifts(self._vocabulary_size, self.params.temperature, self._precision)

    def choose(self, logits: npt.NDArray[np.float32], position: int, ids: Ids | None = None) -> int:
        """The id at absolute `position`, from logits [c] of `ids` [c] (None: column j is id j).

        Candidate ids are distinct and in any order; under a grammar the row has to be whole. Raises
        EngineError for a row whose best is not finite, or that is not of this vocabulary, and what
        the constraint raises.
        """
        if self._is_argmax and ids is None:
            _check_row(logits, None, self._vocabulary_size)
            winner = int(logits.argmax())
            _checked(logits.item(winner))
            return winner
        scores, ids = self._scores(logits, ids)
        if self._constraint is not None and not self._constraint.allows_all:
            allowed = self._allowed_winner(scores, position)
            if allowed is not None:
                return allowed
            scores, ids = self._masked(scores, ids)
        column = self._column(scores, position, ids)
        return column if ids is None else int(ids[column])

    def rivals(self, logits: npt.NDArray[np.float32], position: int) -> Rivals | None:
        """The ids of a row of the whole vocabulary among which noise decides: `whole_rows.choose`,
        which takes many rows at once, finds the one that `choose` would. None where more decides,
        or where `choose` has an error to raise."""
        if not self.only_noise_decides or logits.shape != (self._vocabulary_size,):
            return None
        rivals = find_rivals(logits, self.params.temperature, self._noise(position))
        return rivals if math.isfinite(rivals.top) else None

    def _allowed_winner(self, scores: Scores, position: int) -> int | None:
        """The choice among all ids, if the grammar allows it: it is the choice among those allowed
        then, and most of the model's are. None too where filters depend on the whole row."""
        assert self._constraint is not None
        if self._filtered and self.params.temperature > 0.0:
            return None
        winner = self._column(scores, position, None)
        return winner if self._constraint.allowed()[winner] else None

    def _masked(self, scores: Scores, ids: Ids | None) -> tuple[Scores, Ids | None]:
        """The scores and ids that the grammar allows, in ascending id order."""
        if self._constraint is None or self._constraint.allows_all:
            return scores, ids
        allowed = np.flatnonzero(self._constraint.allowed()).astype(np.int32)
        return scores[allowed], allowed

    def probability(
        self, logits: npt.NDArray[np.float32], token: int, ids: Ids | None = None
    ) -> float:
        """Probability of `token` under this session's penalties, temperature and filters.

        At temperature 0 the model's own distribution (temperature 1) is taken, since a
        distribution on one id has nothing to compare with a threshold. Under a grammar it is the
        probability among the ids that are allowed.
        """
        scores, ids = self._masked(*self._scores(logits, ids))
        temperature = self.params.temperature or 1.0
        columns, values = kept(scores, _checked(scores.max()), temperature, self.params)
        mass = np.exp(values)
        wanted = (columns if ids is None else ids[columns]) == token
        return float(mass[wanted].sum() / mass.sum())

    def _column(self, scores: Scores, position: int, ids: Ids | None) -> int:
        params = self.params
        if params.temperature == 0.0:
            winner = int(scores.argmax())
            _checked(scores[winner])
            return winner
        if ids is None and not self._filtered:
            rivals = find_rivals(scores, params.temperature, self._noise(position))
            _checked(rivals.top)
            return whole_rows.choose([rivals])[0]
        top = _checked(scores.max())
        columns, values = kept(scores, top, params.temperature, params)
        candidates = columns.astype(np.int32) if ids is None else ids[columns]
        return int(columns[gumbel_argmax(values, self._noise(position), candidates)])

    def _noise(self, position: int) -> Noise:
        drawn = self._drawn.get(position)
        return Noise(self.params.seed, position, self._group_size) if drawn is None else drawn

    def _scores(
        self, logits: npt.NDArray[np.float32], ids: Ids | None
    ) -> tuple[Scores, Ids | None]:
        """Checked scores in ascending id order, penalties and biases applied."""
        _check_row(logits, ids, self._vocabulary_size)
        if ids is not None and self._constraint is not None:
            raise EngineError("under a grammar the engine has to score every id of the vocabulary")
        if ids is not None:
            order = ids.argsort(kind="stable")
            logits, ids = logits[order], ids[order]
        if self._history is None and not len(self._biases):
            return logits, ids
        scores = logits.astype(np.float64)
        if self._history is not None:
            self._history.penalize(scores, self.params, ids)
        self._add_biases(scores, ids)
        return scores, ids

    def _add_biases(self, scores: Floats, ids: Ids | None) -> None:
        if ids is None:
            scores[self._biased_ids] += self._biases
        else:
            at = np.minimum(np.searchsorted(ids, self._biased_ids), len(ids) - 1)
            present = ids[at] == self._biased_ids
            scores[at[present]] += self._biases[present]


def _check_ids(name: str, ids: Sequence[int], vocabulary_size: int) -> None:
    for token in ids:
        if not 0 <= token < vocabulary_size:
            raise InvalidSamplingError(
                f"{name} names id {token}, but this vocabulary has ids 0 to {vocabulary_size - 1}"
            )


def _check_row(logits: npt.NDArray[np.float32], ids: Ids | None, vocabulary_size: int) -> None:
    size = vocabulary_size if ids is None else len(ids)
    if logits.shape != (size,) or not size:
        raise EngineError(f"expected a row of {size} logits, the engine gave {logits.shape}")
    if ids is not None and not (0 <= ids.min() and ids.max() < vocabulary_size):
        raise EngineError("the engine named candidate ids outside the vocabulary")


def _checked(top: np.floating[Any] | float) -> float:
    """The best score of a row. One NaN is enough to be it; -inf elsewhere is an id that cannot
    be chosen."""
    score = float(top)
    if not math.isfinite(score):
        raise EngineError("the engine gave logits that are not finite")
    return score
