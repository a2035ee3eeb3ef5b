"""The level of overload: up at once, down slowly."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.scheduler.overload import THRESHOLDS, Level, Overload


@pytest.mark.parametrize(
    ("pressure", "level"),
    [
        (0.0, Level.NORMAL),
        (0.24, Level.NORMAL),
        (0.25, Level.NO_DRAFTS),
        (0.6, Level.SMALL_CHUNKS),
        (0.99, Level.QUEUE_LOW),
        (7.0, Level.REFUSE),
    ],
)
def test_it_rises_at_once_to_where_the_pressure_is(pressure: float, level: Level) -> None:
    assert Overload().update(pressure, 5.0) is level


def test_it_falls_a_level_a_second_once_the_pressure_is_gone() -> None:
    overload = Overload()
    overload.update(1.0, 10.0)
    seen = [overload.update(0.0, 10.0 + 0.25 * step) for step in range(1, 20)]
    assert seen[2] is Level.REFUSE and seen[3] is Level.QUEUE_LOW
    assert seen[7] is Level.SMALL_CHUNKS and seen[-1] is Level.NORMAL


def test_a_pressure_just_below_the_threshold_holds_the_level() -> None:
    overload = Overload()
    overload.update(0.5, 10.0)
    for step in range(100):
        assert overload.update(0.36 + 0.13 * (step % 2), 10.0 + step) is Level.SMALL_CHUNKS


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 3.0)), max_size=60))
def test_it_never_falls_two_levels_at_once_and_is_never_below_what_the_pressure_asks(
    steps: list[tuple[float, float]],
) -> None:
    overload, now, levels = Overload(), 0.0, [Level.NORMAL]
    for pressure, wait_s in steps:
        now += wait_s
        level = overload.update(pressure, now)
        assert all(level >= n for n, least in THRESHOLDS.items() if pressure >= least)
        levels.append(level)
    assert all(before - after <= 1 for before, after in pairwise(levels))
