"""How much is loaded while the rest is computed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.inference.kv_tiers.planning import LoadPlanner

MS = st.floats(0.01, 1000.0)


def test_before_anything_is_known_all_is_loaded() -> None:
    assert LoadPlanner().num_to_load(20, 40.0) == 20


def test_a_store_as_fast_as_the_engine_loads_half() -> None:
    planner = LoadPlanner()
    planner.observe_load(4, 160.0)
    assert 8 <= planner.num_to_load(20, 40.0) <= 10


def test_a_slow_store_is_not_asked_for_what_comes_too_late() -> None:
    planner = LoadPlanner()
    planner.observe_round_trip(5_000.0)
    assert planner.num_to_load(20, 40.0) == 0
    for _ in range(30):
        planner.observe_round_trip(1.0)
    assert planner.num_to_load(20, 40.0) > 0, "it has become faster"


def test_one_in_some_prompts_finds_out_that_transfers_are_fast_again() -> None:
    planner = LoadPlanner()
    planner.observe_load(1, 5_000.0)
    planner.observe_round_trip(5_000.0)
    num_tries = 0
    for number in range(1, 1000):
        if planner.num_to_load(20, 40.0):
            break
        if planner.pays(20, 40.0):
            num_tries += 1
            assert number == 16 * num_tries, "once in a while, and not more often"
            planner.observe_load(1, 1.0)
            planner.observe_round_trip(1.0)
    assert 0 < num_tries < 30
    assert planner.pays(20, 40.0)
    assert not any(planner.pays(0, 40.0) or planner.pays(20, 0.0) for _ in range(40))


def test_nothing_missing_loads_nothing() -> None:
    planner = LoadPlanner()
    planner.observe_load(0, 10.0)
    assert planner.num_to_load(0, 40.0) == planner.num_to_load(-3, 40.0) == 0
    assert planner.num_to_load(20, 0.0) == 0, "computing costs nothing"


@given(st.integers(1, 256), MS, MS, MS)
def test_what_is_loaded_arrives_before_the_engine_does(
    num_blocks: int, compute_ms: float, load_ms: float, fixed_ms: float
) -> None:
    planner = LoadPlanner()
    planner.observe_round_trip(fixed_ms)
    planner.observe_load(1, load_ms)
    count = planner.num_to_load(num_blocks, compute_ms)
    assert 0 <= count <= num_blocks
    if count:
        assert fixed_ms + count * load_ms <= (num_blocks - count) * compute_ms * 1.001
