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
    kind: np.dtype[Any], depth: float | Floats, top: float, temperature: float
) -> npt.NDArray[np.floating[Any]]:
    """Raw scores that every column with `scaled >= depth` reaches, and hardly another; a depth of
    more than 0, which none has, may give NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        cut = np.asarray(top + temperature * (depth - SLACK))
        cut -= SLACK * (abs(top) + np.abs(cut))
        return np.asarray(np.nextafter(cut.astype(kind), kind.type(-np.inf)))


def race(values: Floats, noise: Noise, ids: Ids) -> int:
    """Index of the largest `values + noise`, both [n]; `ids` ascend: the lowest wins a tie.

    An id whose value and group's peak together stay below the total of a holder cannot win; those
    left are looked at. SLACK is far above the rounding of a noise that may lift it over its peak.
    """
    most = values + noise.peaks[ids % NUM_GROUPS]
    held = most[noise.holders[ids % NUM_GROUPS] == ids]
    rivals = np.flatnonzero(most >= held.max(initial=-np.inf) - SLACK)
    return int(rivals[(values[rivals] + noise.of(ids[rivals])).argmax()])


def race_full_row(scores: Scores, top: float, temperature: float, noise: Noise) -> int:
    """`race` over `scaled(scores)` of a whole vocabulary (column j is id j).

    `top` is the largest score. An id whose score does not make up for what its group's peak lacks
    cannot win: one comparison leaves out nearly all.
    """
    held, peaks = noise.held(len(scores))
    best = (scaled(scores[held], top, temperature) + peaks).max(initial=-np.inf)
    cuts = score_cut(scores.dtype, best - SLACK - noise.peaks, top, temperature)
    whole = len(scores) // NUM_GROUPS * NUM_GROUPS
    reached = (scores[:whole].reshape(-1, NUM_GROUPS) >= cuts).ravel()
    if whole < len(scores):
        rest = scores[whole:] >= cuts[: len(scores) - whole]
        reached = np.concatenate([reached, rest])
    ids = np.flatnonzero(reached).astype(np.int32)
    return int(ids[(scaled(scores[ids], top, temperature) + noise.of(ids)).argmax()])
