"""Processors that change or drop scores before a choice: penalties (`History`), and the filters
min_p, top_k and top_p.

The filters run in this order, each over what the one before kept.

"Likelier" is by score, then by lowest id, so each keeps an exact set, never without the best. min_p
compares with the best of the whole row, top_k bounds the set, and top_p cuts the tail of what is
left, its probabilities renormalised as in vLLM. Since min_p and top_k both keep the first ids of
one order, top_k may run first on the raw row, which narrows it for the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.sampling.gumbel import Floats, Ids, Scores, scaled, score_cut
from outrider.sampling.params import SamplingParams

Columns: TypeAlias = npt.NDArray[np.intp]

_NUCLEUS_DEPTHS = (4.0, 10.0, math.inf)
"""Depths below the best scaled score that are sorted, one after the other, to find a nucleus."""
_MAX_FACTOR = 1e30


def any_filter(params: SamplingParams) -> bool:
    """Whether `kept` can drop anything."""
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def kept(
    scores: Scores, top: float, temperature: float, params: SamplingParams
) -> tuple[Columns, Floats]:
    """Ascending columns of `scores` [c] that may be sampled, at least one, and their scaled
    scores. `top` is the largest score.
    """
    if 0 < params.top_k < len(scores):
        columns = _top_k(scores, params.top_k)
    elif params.min_p > 0.0:
        cut = score_cut(scores.dtype, math.log(params.min_p), top, temperature)
        columns = np.flatnonzero(scores >= cut)
    elif params.top_p < 1.0:
        return _nucleus_of_row(scores, top, temperature, params.top_p)
    else:
        columns = np.arange(len(scores))
    values = scaled(scores[columns], top, temperature)
    if params.min_p > 0.0:
        likely = values >= math.log(params.min_p)
        columns, values = columns[likely], values[likely]
    if params.top_p < 1.0:
        nucleus = _nucleus(values, params.top_p * float(np.exp(values).sum()))
        columns, values = columns[nucleus], values[nucleus]
    return columns, values


def _top_k(scores: Scores, k: int) -> Columns:
    """The k largest; of equal ones the first."""
    return _first(scores, np.partition(scores, len(scores) - k)[len(scores) - k], k)


def _first(scores: Scores, least: float, count: int) -> Columns:
    """The first `count` columns by score, then column; `least` is the last one's score."""
    above = np.flatnonzero(scores > least)
    level = np.flatnonzero(scores == least)[: count - len(above)]
    return np.sort(np.concatenate([above, level]))


def _nucleus(values: Floats, target: float) -> Columns:
    """The shortest prefix, likeliest first, whose mass reaches `target`; else everything."""
    ranked = np.ascontiguousarray(np.sort(values)[::-1])
    reached = np.cumsum(np.exp(ranked))
    count = min(int(np.searchsorted(reached, target)) + 1, len(values))
    return _first(values, ranked[count - 1], count)


def _nucleus_of_row(
    scores: Scores, top: float, temperature: float, p: float
) -> tuple[Columns, Floats]:
    """`_nucleus` of a whole row, which sorts only ids near the best when they hold the mass:
    sorting everything would begin with the same ids and the same partial sums.
    """
    target = p * _mass(scores, top, temperature)
    for depth in _NUCLEUS_DEPTHS:
        columns = np.flatnonzero(scores >= score_cut(scores.dtype, -depth, top, temperature))
        values = scaled(scores[columns], top, temperature)
        if float(np.exp(values).sum()) > target * (1 + 1e-9):
            break
    nucleus = _nucleus(values, target)
    return columns[nucleus], values[nucleus]


def _mass(scores: Scores, top: float, temperature: float) -> float:
    """Sum of exp(scaled score) over a row, in single precision but for the sum itself: a share
    of 1e-7 is far below what anyone means by a top_p, and a whole row takes half the time."""
    with np.errstate(over="ignore"):
        values = np.subtract(scores, top, dtype=np.float32, casting="same_kind")
        # Not infinite: the best score's difference is 0, and has to stay it.
        values *= np.float32(min(1.0 / temperature, _MAX_FACTOR))
    return float(np.exp(values, out=values).sum(dtype=np.float64))


class History:
    """Distinct ids of prompt and reply, each with its count in the reply.

    Adding an id is O(1); nothing is recounted when a penalty is applied.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._slots: dict[int, int] = {}
        self._ids: Ids = np.empty(64, dtype=np.int32)
        self._counts: Floats = np.empty(64, dtype=np.float64)
        for token in prompt:
            self._slot(token)

    def add(self, token: int) -> None:
        """Count one more token of the reply."""
        # First the slot: making one may move the counts.
        slot = self._slot(token)
        self._counts[slot] += 1.0

    def penalize(self, scores: Floats, params: SamplingParams, ids: Ids | None) -> None:
        """Apply repetition, presence and frequency penalties to `scores` [c] in place.

        Columns stand for the ascending `ids`, or for themselves.
        """
        columns, counts = self._columns(ids)
        seen = scores[columns]
        factor = params.repetition_penalty
        seen = np.where(seen > 0, seen / factor, seen * factor)
        seen -= params.presence_penalty * (counts > 0) + params.frequency_penalty * counts
        scores[columns] = seen

    def _columns(self, ids: Ids | None) -> tuple[npt.NDArray[np.intp], Floats]:
        size = len(self._slots)
        seen, counts = self._ids[:size].astype(np.intp), self._counts[:size]
        if ids is None:
            return seen, counts
        at = np.minimum(np.searchsorted(ids, seen), len(ids) - 1)
        present = ids[at] == seen
        return at[present], counts[present]

    def _slot(self, token: int) -> int:
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = len(self._slots)
            if slot == len(self._ids):
                self._ids = np.resize(self._ids, 2 * slot)
                self._counts = np.resize(self._counts, 2 * slot)
            self._ids[slot], self._counts[slot] = token, 0.0
        return slot
