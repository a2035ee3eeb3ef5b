"""Promises against what was kept."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.edge.session.control.calibration import Calibration


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
