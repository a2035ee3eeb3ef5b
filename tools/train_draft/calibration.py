"""Curves from the draft's own confidence to the chance that the target agrees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Indices: TypeAlias = npt.NDArray[np.int64]

GRID: Floats = np.linspace(0.0, 1.0, 21)
"""Confidences for which a calibration gives the chance of agreement; linear between them."""
_BINS = 60
_PRIOR_WEIGHT = 8.0
"""Observations' worth of the identity in every bin of the pooled curve."""
_POOLED_WEIGHT = 1.0
"""Observations' worth of the pooled curve in every bin of one range's: its _BINS bins together
weigh as much as so many observations, and a range with fewer stays near the pooled curve."""


def fit(
    confidences: Floats, agreed: Bools, prior: Floats = GRID, prior_weight: float = _PRIOR_WEIGHT
) -> Floats:
    """[21] chances on GRID: isotonic regression over bins of `confidences` [n].

    Pool-adjacent-violators (Ayer et al., 1955), since a chance that falls as confidence grows is
    noise. Every bin begins with `prior_weight` observations' worth of the curve `prior` [21]: what
    a bin that saw nothing says.
    """
    edges = np.linspace(0.0, 1.0, _BINS + 1)
    which = np.clip(np.digitize(confidences, edges) - 1, 0, _BINS - 1)
    centres = (edges[:-1] + edges[1:]) / 2
    counts: Floats = np.bincount(which, minlength=_BINS).astype(np.float64) + prior_weight
    hits = np.bincount(which, agreed, minlength=_BINS) + prior_weight * calibrated(prior, centres)
    return np.clip(np.interp(GRID, centres, _isotonic(hits / counts, counts)), 0.0, 1.0)


def fit_by_position(
    confidences: Floats, positions: Indices, agreed: Bools, begins: Sequence[int]
) -> Floats:
    """[b, 21] one curve per range of reply positions that begins at `begins` [b]; `positions` [n]
    are the observations' own. A range's curve is drawn towards the curve of all ranges together;
    the fewer observations it has, the more."""
    pooled = fit(confidences, agreed)
    which = range_of(positions, begins)
    return np.stack(
        [
            fit(confidences[inside], agreed[inside], pooled, _POOLED_WEIGHT)
            for inside in (which == at for at in range(len(begins)))
        ]
    )


def range_of(positions: Indices, begins: Sequence[int]) -> Indices:
    """[n] number of the range that each position is in."""
    return np.searchsorted(np.asarray(begins), positions, side="right") - 1


def calibrated(calibration: Floats, confidences: Floats) -> Floats:
    """The chances of `confidences`, elementwise, by a curve [21]."""
    return np.interp(confidences, GRID, calibration)


def calibrated_by_position(
    curves: Floats, begins: Sequence[int], confidences: Floats, positions: Indices
) -> Floats:
    """The same by the curves [b, 21] of ranges of reply positions."""
    which, chances = range_of(positions, begins), np.zeros(len(confidences))
    for at, curve in enumerate(curves):
        chances[which == at] = calibrated(curve, confidences[which == at])
    return chances


def reliability(chances: Floats, agreed: Bools, num_bins: int = 10) -> list[dict[str, float]]:
    """Per bin of the chance: how many, the mean chance, the share that agreed."""
    which = np.clip((chances * num_bins).astype(int), 0, num_bins - 1)
    return [
        {
            "count": int(inside.sum()),
            "chance": round(float(chances[inside].mean()), 4),
            "agreed": round(float(agreed[inside].mean()), 4),
        }
        for inside in (which == at for at in range(num_bins))
        if inside.any()
    ]


def calibration_error(chances: Floats, agreed: Bools) -> float:
    """Expected calibration error: mean distance of chance and share that agreed over ten bins,
    weighted by their counts (Naeini et al., AAAI 2015)."""
    bins = reliability(chances, agreed)
    total = sum(each["count"] for each in bins)
    return sum(each["count"] * abs(each["chance"] - each["agreed"]) for each in bins) / total


def _isotonic(values: Floats, weights: Floats) -> Floats:
    """The nondecreasing sequence nearest to `values` in weighted squares."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, mass, length = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            other, other_mass, other_length = blocks.pop()
            mean = (mean * mass + other * other_mass) / (mass + other_mass)
            mass, length = mass + other_mass, length + other_length
        blocks.append((mean, mass, length))
    return np.concatenate([np.full(length, mean) for mean, _, length in blocks])
