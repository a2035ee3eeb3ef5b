"""From the draft's own confidence to the chance that the target agrees."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

GRID: Floats = np.linspace(0.0, 1.0, 21)
"""Confidences for which a calibration gives the chance of agreement; linear between them."""
_BINS = 60
_PRIOR_WEIGHT = 8.0
"""Observations' worth of the identity in every bin: what a bin that saw nothing says."""


def fit(confidences: Floats, agreed: Bools) -> Floats:
    """[21] chances on GRID: isotonic regression over bins of `confidences` [n].

    Pool-adjacent-violators (Ayer et al., 1955), since a chance that falls as confidence grows is
    noise; the prior keeps it defined where there are no observations.
    """
    edges = np.linspace(0.0, 1.0, _BINS + 1)
    which = np.clip(np.digitize(confidences, edges) - 1, 0, _BINS - 1)
    centres = (edges[:-1] + edges[1:]) / 2
    counts: Floats = np.bincount(which, minlength=_BINS).astype(np.float64) + _PRIOR_WEIGHT
    hits = np.bincount(which, agreed, minlength=_BINS) + _PRIOR_WEIGHT * centres
    return np.clip(np.interp(GRID, centres, _isotonic(hits / counts, counts)), 0.0, 1.0)


def calibrated(calibration: Floats, confidences: Floats) -> Floats:
    """The chances of `confidences`, elementwise."""
    return np.interp(confidences, GRID, calibration)


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
