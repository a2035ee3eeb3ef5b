"""How many replicas there should be."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import ConfigError
from services.router.conductor.conductor import Conductor, Figures, Fleet, Post
from services.router.conductor.policy import ConductorPolicy

POST = Post("us", "m")
POLICY = ConductorPolicy(min_replicas=2, max_replicas=12)
STEP_S = 5


class Region:
    """Replicas that come when they are wanted, a while later, and go at once."""

    def __init__(self, num_replicas: int = 4, starts_s: float = 60.0, **policy: Any) -> None:
        self.policy = ConductorPolicy(**{"min_replicas": 2, "max_replicas": 12, **policy})
        self.conductor = Conductor(self.policy)
        self.now = 0.0
        self.num_replicas = num_replicas
        self.starts_s = starts_s
        self.wanted: list[tuple[float, int]] = []
        self.figures: list[Figures] = []
        self.step(0.4 * num_replicas, 0.0)

    def step(self, load: float, late: float) -> Figures:
        """A step with `load` replicas' worth of work, of whose ten requests so many are late."""
        for count in range(10):
            ttft_ms = 500.0 if count < 10 * late else 50.0
            self.conductor.first_token(POST, ttft_ms, self.now)
        fleet = Fleet(self.num_replicas, load / self.num_replicas)
        figures = self.conductor.review({POST: fleet}, self.now)[POST]
        self.figures.append(figures)
        self.wanted.append((self.now + self.starts_s, figures.desired_replicas))
        desired = figures.desired_replicas
        if desired < self.num_replicas:
            self.num_replicas = desired
        ready = [num for at, num in self.wanted if at <= self.now]
        self.num_replicas = max(self.num_replicas, min([*ready[-1:], desired]) if ready else 0)
        self.now += STEP_S
        return figures

    def run(self, seconds: int, load: float, late: float = 0.0) -> int:
        """The number wanted in the end."""
        for _ in range(seconds // STEP_S):
            self.step(load, late)
        return self.figures[-1].desired_replicas

    @property
    def changes(self) -> list[tuple[int, int]]:
        """When the number changed, and to what."""
        desired = [figures.desired_replicas for figures in self.figures]
        return [
            (STEP_S * i, desired[i]) for i in range(1, len(desired)) if desired[i] != desired[i - 1]
        ]


def test_at_first_as_many_as_there_are() -> None:
    assert Region(5).run(60, load=2.5) == 5


def test_late_requests_make_it_grow_to_the_target() -> None:
    region = Region(4)
    assert region.run(100, load=4.2) == 4
    assert region.run(30, load=4.2, late=0.2) == 6
    assert region.figures[-1].late_share == pytest.approx(0.1, abs=0.02)
    assert region.figures[-1].utilization == pytest.approx(1.05)


def test_few_late_requests_do_not() -> None:
    conductor = Conductor(POLICY)
    fleet = {POST: Fleet(4, 1.0)}
    conductor.review(fleet, 0.0)
    for count in range(1000):
        conductor.first_token(POST, 121.0 if count % 20 == 0 else 120.0, 30.0)
    assert conductor.review(fleet, 31.0)[POST].desired_replicas == 4
    conductor.first_token(POST, 121.0, 32.0)
    assert conductor.review(fleet, 33.0)[POST].desired_replicas == 6


def test_too_few_requests_say_nothing() -> None:
    conductor = Conductor(POLICY)
    fleet = {POST: Fleet(4, 1.0)}
    conductor.review(fleet, 0.0)
    for count in range(POLICY.min_requests):
        assert conductor.review(fleet, 1.0)[POST].desired_replicas == 4, count
        conductor.first_token(POST, 9999.0, 1.0)
    assert conductor.review(fleet, 1.0)[POST].desired_replicas > 4


def test_it_grows_by_one_at_least_and_to_twice_at_most() -> None:
    assert Region(4).run(20, load=1.6, late=1.0) == 5
    assert Region(4).run(20, load=400.0, late=1.0) == 8


def test_requests_that_are_late_for_being_long_do_not_make_it_grow() -> None:
    assert Region(4).run(300, load=0.4, late=1.0) == 4


def test_it_waits_for_what_it_asked_for() -> None:
    region = Region(2, starts_s=60.0)
    region.run(400, load=8.0, late=1.0)
    (first, six), *_ = region.changes
    assert six == 4
    pauses_s = [after - before for (before, _), (after, _) in pairwise(region.changes)]
    assert min(pauses_s) >= region.policy.out_cooldown_s
    assert first <= 2 * STEP_S
    assert region.figures[-1].desired_replicas == 12


def test_replicas_that_never_come_are_not_asked_for_again_and_again() -> None:
    region = Region(4, starts_s=math.inf)
    assert region.run(2000, load=8.0, late=1.0) == 8


def test_requests_that_found_no_room_count_as_late() -> None:
    conductor = Conductor(POLICY)
    fleet = {POST: Fleet(2, 1.0)}
    conductor.review(fleet, 0.0)
    for _ in range(POLICY.min_requests):
        conductor.lacked(POST, 1.0)
    assert conductor.review(fleet, 1.0)[POST].desired_replicas == 3


def test_long_idleness_makes_it_shrink_one_by_one_to_the_least() -> None:
    region = Region(6)
    region.run(590, load=0.3)
    assert region.changes == []
    region.run(3000, load=0.3)
    assert [num for _, num in region.changes] == [5, 4, 3, 2]
    times = [at for at, _ in region.changes]
    assert times[0] >= region.policy.idle_s
    assert all(b - a >= region.policy.in_cooldown_s for a, b in pairwise(times))


def test_one_busy_stretch_keeps_them() -> None:
    region = Region(6)
    for _ in range(10):
        region.run(500, load=0.3)
        region.run(60, load=5.0)
    assert region.changes == []


def test_it_does_not_shrink_into_late_requests() -> None:
    """What is left after shrinking is below the target, so it does not swing."""
    region = Region(2, min_replicas=1, idle_utilization=0.6)
    assert region.run(5000, load=1.0) == 2
    assert Region(2, min_replicas=1).run(5000, load=0.6) == 1


def test_replicas_that_somebody_else_starts_are_followed() -> None:
    region = Region(3)
    region.run(10, load=1.5)
    region.num_replicas = 7
    assert region.run(10, load=1.5) == 7


def test_the_bounds_hold() -> None:
    assert Region(1).figures[0].desired_replicas == 2
    assert Region(11).run(500, load=400.0, late=1.0) == 12


def test_posts_without_replicas_are_forgotten() -> None:
    conductor = Conductor(POLICY)
    other = Post("eu", "m")
    conductor.first_token(other, 1.0, 0.0)  # not known yet
    assert set(conductor.review({POST: Fleet(2, 0.1), other: Fleet(2, 0.1)}, 0.0)) == {POST, other}
    assert set(conductor.review({POST: Fleet(2, 0.1)}, 1.0)) == {POST}
    assert len(conductor._states) == 1


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.0, 1.0)), min_size=1, max_size=12))
def test_whatever_the_load_it_stays_in_bounds_and_does_not_swing(
    stretches: list[tuple[float, float]],
) -> None:
    region = Region(4)
    for load, late in stretches:
        region.run(150, load, late)
    for figures in region.figures:
        assert 2 <= figures.desired_replicas <= 12
    for (before, num), (after, then) in pairwise(region.changes):
        pause_s = region.policy.out_cooldown_s if then > num else region.policy.in_cooldown_s
        assert after - before >= pause_s


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"slo_ttft_ms": 0.0}, "conductor.slo_ttft_ms"),
        ({"max_late_share": 1.0}, "below 1"),
        ({"idle_utilization": 0.9}, "swings"),
        ({"max_step": 1.0}, "above 1"),
        ({"max_replicas": 1, "min_replicas": 2}, "below min_replicas"),
        ({"window_s": float("nan")}, "window_s is nan"),
    ],
)
def test_aims_that_cannot_work_are_refused(policy: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ConductorPolicy(**policy)
