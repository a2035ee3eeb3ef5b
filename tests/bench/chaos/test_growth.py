"""Which processes hold more and more."""

from __future__ import annotations

import pytest

from bench.chaos.growth import LEAST_LIFE_S, MAX_GROWTH, WARM_UP_S, Held, Life

NOTHING = Held(0.0, 0)
LONG_S = WARM_UP_S + LEAST_LIFE_S + 100.0


def lived(seconds: float, per_s: Held, spike: Held = NOTHING) -> Life:
    """A process that grows evenly, and once holds more by `spike`."""
    life = Life(1000.0)
    for at in range(0, int(seconds) + 1, 5):
        more = spike if at == int(seconds) // 2 // 5 * 5 else NOTHING
        memory_mb = 100.0 + at * per_s.memory_mb + more.memory_mb
        life.add(1000.0 + at, Held(memory_mb, 20 + at * per_s.num_files + more.num_files))
    return life


def test_a_process_that_stays_the_same_is_fine_whatever_it_held_for_a_moment() -> None:
    life = lived(LONG_S, NOTHING, spike=Held(500.0, 500))
    assert life.is_judged
    assert life.problem == ""
    calm = Held(100.0, 20)
    assert (life.first, life.middle, life.last, life.peak) == (calm, calm, calm, Held(600.0, 520))


@pytest.mark.parametrize(
    ("per_s", "told"), [(Held(1.0, 0), "resident memory"), (Held(0.0, 1), "descriptors")]
)
def test_what_grows_is_told(per_s: Held, told: str) -> None:
    assert told in lived(LONG_S, per_s).problem


def test_what_grows_evenly_is_half_as_much_larger_half_way() -> None:
    life = lived(LONG_S, Held(1.0, 1))
    grown = life.last.memory_mb - life.first.memory_mb
    assert life.middle.memory_mb - life.first.memory_mb == pytest.approx(grown / 2, abs=5.0)


def test_growth_up_to_the_limit_is_fine() -> None:
    share = MAX_GROWTH.memory_mb / LONG_S
    assert lived(LONG_S, Held(share, 0)).problem == ""


def test_warming_up_is_no_growth_and_a_short_life_is_not_judged() -> None:
    warming = Life(0.0)
    for at in range(0, int(LONG_S), 5):
        warming.add(float(at), Held(100.0 if at < WARM_UP_S else 900.0, 20))
    assert warming.problem == ""
    short = lived(WARM_UP_S + LEAST_LIFE_S - 10.0, Held(10.0, 10))
    assert not short.is_judged
    assert short.problem == ""
