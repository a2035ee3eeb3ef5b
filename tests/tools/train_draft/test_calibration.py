"""Calibration and its measures."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.train_draft.test_draft_file import small_draft
from tools.train_draft.agreement import Trace
from tools.train_draft.calibration import (
    GRID,
    _isotonic,
    calibrated,
    calibrated_by_position,
    calibration_error,
    fit,
    fit_by_position,
)
from tools.train_draft.export import _calibrated


def test_an_overconfident_draft_is_corrected() -> None:
    rng = np.random.default_rng(0)
    confidences = rng.random(40_000)
    agreed = rng.random(40_000) < confidences**2
    curve = fit(confidences, agreed)
    np.testing.assert_allclose(curve[2:-1], GRID[2:-1] ** 2, atol=0.05)
    assert calibration_error(confidences, agreed) > 0.12
    assert calibration_error(calibrated(curve, confidences), agreed) < 0.01


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=200),
)
def test_a_calibration_is_a_rising_map_into_chances(pairs: list[tuple[float, bool]]) -> None:
    curve = fit(np.array([c for c, _ in pairs]), np.array([a for _, a in pairs]))
    assert curve.shape == (21,)
    assert np.all(np.diff(curve) >= 0)
    assert 0 <= curve[0] and curve[-1] <= 1


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.5, 5)), min_size=1, max_size=12))
def test_isotonic_values_are_the_weighted_means_of_their_blocks(
    pairs: list[tuple[float, float]],
) -> None:
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    found = _isotonic(values, weights)
    assert np.all(np.diff(found) >= 0)
    for level in np.unique(found):
        block = found == level
        mean = np.average(values[block], weights=weights[block])
        np.testing.assert_allclose(mean, level, atol=1e-12)


def test_greedy_and_sampled_replies_are_calibrated_apart() -> None:
    right, wrong = np.ones(400, bool), np.zeros(400, bool)
    sure = np.linspace(0.8, 0.99, 400)
    seen = [Trace("k", 0, 0.0, right, right, sure), Trace("k", 1, 0.8, wrong, wrong, sure)]
    draft = _calibrated(small_draft(), seen)
    assert draft.calibration_greedy[4, 18] > 0.9
    assert draft.calibration_sampled[4, 18] < 0.4


def test_first_tokens_are_calibrated_apart_where_enough_of_them_were_seen() -> None:
    """Half as often right as later ones; one range has a handful of observations."""
    rng = np.random.default_rng(1)
    confidences, positions = rng.random(30_000), rng.integers(1, 40, 30_000)
    positions[:2000] = 0
    agreed = rng.random(30_000) < np.where(positions == 0, 0.5, 1.0) * confidences
    few = (positions != 2) | (np.cumsum(positions == 2) <= 5)
    begins = (0, 1, 2, 3)
    curves = fit_by_position(confidences[few], positions[few], agreed[few], begins)
    assert curves.shape == (4, 21)
    np.testing.assert_allclose(curves[0, 2:-1], GRID[2:-1] / 2, atol=0.1)
    np.testing.assert_allclose(curves[3, 2:-1], GRID[2:-1], atol=0.06)
    np.testing.assert_allclose(curves[2], fit(confidences[few], agreed[few]), atol=0.12)
    chances = calibrated_by_position(curves, begins, confidences, positions)
    assert calibration_error(chances[:2000], agreed[:2000]) < 0.02
    pooled = calibrated(fit(confidences, agreed), confidences)
    assert calibration_error(pooled[:2000], agreed[:2000]) > 0.15
