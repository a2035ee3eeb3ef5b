"""The Gumbel-max race: argmax over ids of scaled score + noise, exactly, without all the logs.

P(argmax = id) is softmax(scaled) (Gumbel 1954; as a coupling between drafter and verifier:
Daliri, Musco, Suresh, arXiv 2408.07978).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.sampling.noise import Floats, Ids, Words, gumbel, words_of_ids, words_of_row

Scores: TypeAlias = npt.NDArray[np.floating[Any]]

_LOUD_WORD = np.uint64(63 << 58)
_LOUD_NOISE = float(gumbel(np.array([_LOUD_WORD], dtype=np.uint64))[0])
SLACK = 1e-9
"""Far above every rounding error of a scaled score or a total that can matter."""


def scaled(scores: Scores, top: float, temperature: float) -> Floats:
    """(score - top) / temperature in float64, elementwise; 0 for the best, never NaN.

    Subtracting first keeps a tiny temperature from overflowing; -inf means "cannot win".
    """
    with np.errstate(over="ignore"):
        return np.asarray((scores.astype(np.float64) - top) / temperature)


def score_cut(
    kind: np.dtype[Any], depth: float, top: float, temperature: float
) -> np.floating[Any]:
    """A raw score that every column with `scaled >= depth` reaches, and hardly another."""
    cut = top + temperature * (depth - SLACK)
    cut -= SLACK * (abs(top) + abs(cut))
    with np.errstate(over="ignore"):
        return np.nextafter(kind.type(cut), kind.type(-np.inf))  # type: ignore[no-any-return]


def race(values: Floats, seed: int, position: int, ids: Ids) -> int:
    """Index of the largest `values + noise`, both [n]; `ids` ascend: the lowest wins a tie."""
    return int((values + gumbel(words_of_ids(seed, position, ids))).argmax())


def race_full_row(scores: Scores, top: float, temperature: float, seed: int, position: int) -> int:
    """`race` over `scaled(scores)` of a whole vocabulary (column j is id j), pruned.

    `top` is the largest score. Why pruning never changes the result: call an id loud when its
    word is at least LOUD_WORD (1 in 64 are), else quiet. Let L be the largest total of the
    loud ids and the best-scored id. Noise grows with the word, so a quiet id's total is at
    most scaled + LOUD_NOISE, and the quiet ids with scaled + LOUD_NOISE < L - SLACK lose. All
    others are evaluated, with the same elementwise operations as in the full race, and the
    best-scored id is among them whenever it attains L. L lies in [-3.61, 36.74] since the best
    id's scaled score is 0, so sums near L err by less than 1e-13 and the noise's rounding
    breaks monotony by a few ulp: SLACK is far above both. `score_cut` rounds towards
    evaluating more ids.
    """
    words = words_of_row(seed, position, len(scores))
    best = int(scores.argmax())
    loud = np.flatnonzero(words >= _LOUD_WORD)
    lead, leader = _leader(scores, words, np.append(loud, best), top, temperature)
    cut = score_cut(scores.dtype, lead - _LOUD_NOISE, top, temperature)
    likely = np.flatnonzero(scores >= cut)
    if not len(likely):
        return leader
    rival_lead, rival = _leader(scores, words, likely, top, temperature)
    return min((-lead, leader), (-rival_lead, rival))[1]


def _leader(
    scores: Scores, words: Words, columns: npt.NDArray[np.intp], top: float, temperature: float
) -> tuple[float, int]:
    """The largest total among these columns, and the lowest column that has it."""
    totals = scaled(scores[columns], top, temperature) + gumbel(words[columns])
    lead = totals.max()
    return float(lead), int(columns[totals == lead].min())
