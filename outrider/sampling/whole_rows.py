"""The choice from whole rows, in which column j is id j: the argmax of score + noise, exactly, with
noise computed for few ids.

Noise times temperature is called an id's lift here, for it has the units of scores. An id can win
only if its score plus the lift of its group's maximum (see `gumbel`) reaches the total of some
group argmax. So one pass over a row finds the largest score of each group, and all but some dozens
of ids are left out. What remains are many operations on few numbers, which take three times as long
for sixteen rows as for one: the rows of an engine call go through them together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from outrider.sampling.gumbel import (
    MAX_VOCABULARY,
    NUM_GROUPS,
    SLACK,
    Ids,
    Lifts,
    Noise,
    Scores,
    noise_of_rows,
    scaled,
)

_STEPS = np.arange(0, MAX_VOCABULARY, NUM_GROUPS, dtype=np.int32)[:, None]
"""The first id of group 0, its second, and so on."""


class Rivals(NamedTuple):
    """The ids of one row that can win."""

    ids: Ids
    """[n], ascending."""
    scores: Scores
    """[n]"""
    top: float
    """The largest score of the row; NaN if any score is. If it is not finite no id can win, and
    `ids` is empty."""
    temperature: float
    noise: Noise


def find_rivals(scores: Scores, temperature: float, noise: Noise) -> Rivals:
    """The ids of the row [V] that can win, at a temperature above 0."""
    size = len(scores)
    tops = _group_tops(scores)  # first: it reads the row from one end to the other, into the cache
    top = float(tops[tops.argmax()])
    if not math.isfinite(top):
        return Rivals(np.empty(0, np.int32), scores[:0], top, temperature, noise)
    cuts = _cuts(scores, noise.lifts(size, temperature, scores.dtype), temperature)
    groups = np.flatnonzero(tops >= cuts).astype(np.int32)
    ids: Ids = (_STEPS[: -(-size // NUM_GROUPS)] + groups).ravel()
    if size % NUM_GROUPS:
        ids = ids[ids < size]
    of_ids = scores.take(ids)
    reaching = np.flatnonzero(of_ids >= cuts.take(ids & np.int32(NUM_GROUPS - 1)))
    return Rivals(ids.take(reaching), of_ids.take(reaching), top, temperature, noise)


def choose(rows: Sequence[Rivals]) -> list[int]:
    """For each row, whose top is finite, the id with the largest (score - top) / temperature +
    noise, in float64; the lowest of equal ones. A row's choice does not depend on the others."""
    if not rows:
        return []
    totals = np.concatenate([scaled(row.scores, row.top, row.temperature) for row in rows])
    counts = [len(row.ids) for row in rows]
    ids = np.concatenate([row.ids for row in rows])
    totals += noise_of_rows([row.noise for row in rows], counts, ids)
    chosen: list[int] = []
    begin = 0
    for row, count in zip(rows, counts, strict=True):
        chosen.append(row.ids.item(totals[begin : begin + count].argmax()))
        begin += count
    return chosen


def _group_tops(scores: Scores) -> Scores:
    """[NUM_GROUPS] the largest score of each; -inf for a group without ids."""
    whole = len(scores) // NUM_GROUPS * NUM_GROUPS
    tops: Scores = scores[:whole].reshape(-1, NUM_GROUPS).max(axis=0, initial=-np.inf)
    rest = len(scores) - whole
    if rest:
        np.maximum(tops[:rest], scores[whole:], out=tops[:rest])
    return tops


def _cuts(scores: Scores, lifts: Lifts, temperature: float) -> Scores:
    """[NUM_GROUPS] the score from which on an id of the group can win."""
    lifted = scores.take(lifts.argmaxes) + lifts.of_argmaxes
    best = float(lifted[lifted.argmax()])
    limits = np.finfo(scores.dtype)
    # Lifts and sums are rounded a few times, each by half of eps of the largest of them at most.
    cut = best - 4.0 * float(limits.eps) * (abs(best) + lifts.largest) - SLACK * temperature
    if best > -np.inf:
        cut = max(cut, float(limits.min))  # where it is -inf, every id can win
    return np.asarray(scores.dtype.type(cut) - lifts.of_groups)
