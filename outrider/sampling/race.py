"""The Gumbel-max race: argmax over ids of scaled score + noise, exactly, with few ids looked at.

P(argmax = id) is softmax(scaled) (Gumbel 1954; as a coupling between drafter and verifier:
Daliri, Musco, Suresh, arXiv 2408.07978).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.sampling.noise import NUM_GROUPS, Floats, Ids, Noise

Scores: TypeAlias = npt.NDArray[np.floating[Any]]

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


def race(values: Floats, noise: Noise, ids: Ids) -> int:
    """Index of the largest `values + noise`, both [n]; `ids` ascend: the lowest wins a tie.

    An id whose value and group's peak together stay below the total of a holder cannot win; those
    left are looked at. SLACK is far above the rounding of a noise that may lift it over its peak.
    """
    most = values + noise.peaks[ids % NUM_GROUPS]
    held = most[noise.holders[ids % NUM_GROUPS] == ids]
    rivals = np.flatnonzero(most >= held.max(initial=-np.inf) - SLACK)
    return int(rivals[(values[rivals] + noise.of(ids[rivals])).argmax()])


def race_full_row(
    scores: Scores, best: Scores, top: float, temperature: float, noise: Noise
) -> int:
    """`race` over `scaled(scores)` of a whole vocabulary (column j is id j).

    `best` are its `best_of_groups`, `top` is the largest of them. Groups whose best score shows
    that none of theirs can win are left out, most of them in text; scaling is monotonic in floating
    point too.
    """
    last = np.minimum(noise.holders, len(scores) - 1)
    held = (scaled(scores[last], top, temperature) + noise.peaks)[last == noise.holders]
    most = scaled(best, top, temperature) + noise.peaks
    groups = np.flatnonzero(most >= held.max(initial=-np.inf) - SLACK)
    ranks = np.arange(-(-len(scores) // NUM_GROUPS))[:, None]
    ids = (ranks * NUM_GROUPS + groups).ravel().astype(np.int32)
    ids = ids[: np.searchsorted(ids, len(scores))]
    return int(ids[race(scaled(scores[ids], top, temperature), noise, ids)])


def best_of_groups(scores: Scores) -> Scores:
    """[NUM_GROUPS] the largest score of each group of a whole vocabulary; -inf for one without an
    id, NaN for one with a NaN."""
    whole = len(scores) // NUM_GROUPS * NUM_GROUPS
    best = scores[:whole].reshape(-1, NUM_GROUPS).max(axis=0, initial=-np.inf)
    rest = scores[whole:]
    np.maximum(best[: len(rest)], rest, out=best[: len(rest)])
    return np.asarray(best)
