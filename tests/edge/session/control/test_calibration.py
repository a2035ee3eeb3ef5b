"""Promises against what was kept."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.speculation.calibration import Platt, SourceCalibrations
from services.edge.session.control.calibration import MAX_SOURCES, Calibration, Calibrations


def after(kept: Callable[[float], float], count: int = 2000) -> Calibration:
    """After drafts of even promises, of which a share `kept(promise)` was right."""
    calibration, rng = Calibration(), Random(3)
    for _ in range(count):
        promise = rng.uniform(0.05, 0.99)
        calibration.observe(promise, rng.random() < kept(promise))
    return calibration


@pytest.mark.parametrize("promise", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_what_is_kept_is_believed(promise: float) -> None:
    assert Calibration().chance(promise) == pytest.approx(promise)
    assert after(lambda p: p).chance(promise) == pytest.approx(promise, abs=0.08)
    assert after(lambda p: p * p).chance(promise) == pytest.approx(promise**2, abs=0.1)
    assert after(lambda p: 0.5 + p / 2).chance(promise) == pytest.approx(
        0.5 + promise / 2, abs=0.15
    )


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=200))
def test_the_order_of_promises_stays(seen: list[tuple[float, bool]]) -> None:
    calibration = Calibration()
    for promise, right in seen:
        calibration.observe(promise, right)
    chances = [calibration.chance(n / 20) for n in range(21)]
    assert chances == sorted(chances)
    assert all(0 < chance < 1 for chance in chances)


def test_promises_that_are_not_kept_are_worth_less() -> None:
    calibrations, rng = Calibrations(are_sampled=False), Random(1)
    for _ in range(600):
        calibrations.observe("loud", 0.9, 0, rng.random() < 0.3)
        calibrations.observe("sober", 0.6, 0, rng.random() < 0.6)
    assert calibrations.chance("loud", 0.9, 0) == pytest.approx(0.3, abs=0.1)
    assert calibrations.chance("sober", 0.6, 0) == pytest.approx(0.6, abs=0.1)
    assert calibrations.chance("unknown", 0.6, 0) == pytest.approx(0.6)
    assert calibrations.chance("loud", 0.9, 5) == pytest.approx(0.9), "other places are others"


def test_they_begin_as_shipped_and_learn_on() -> None:
    lines = (Platt(-2.0, 0.5), *[Platt()] * 4)
    shipped = SourceCalibrations(greedy={"copy": lines})
    greedy, sampled = (Calibrations(shipped, are_sampled=kind) for kind in (False, True))
    assert greedy.chance("copy", 0.9, 0) == pytest.approx(lines[0].chance(0.9))
    assert lines[0].chance(0.9) < 0.3
    assert greedy.chance("copy", 0.9, 1) == pytest.approx(0.9)
    assert sampled.chance("copy", 0.9, 0) == pytest.approx(0.9)
    for _ in range(400):
        greedy.observe("copy", 0.9, 0, True)
    assert greedy.chance("copy", 0.9, 0) > 0.6


def test_names_are_bounded() -> None:
    calibrations = Calibrations(are_sampled=False)
    for number in range(100):
        calibrations.observe(f"source {number}", 0.5, 0, True)
    assert len(calibrations.sources) == MAX_SOURCES + 1
