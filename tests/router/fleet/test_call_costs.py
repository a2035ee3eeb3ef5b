"""What calls take, as a replica and its peers say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.router.fleet.call_costs import KIND_RATIO, CallCosts

DEFAULT = (5.0, 0.5)


def reported(*figures: tuple[float, float]) -> CallCosts:
    costs = CallCosts()
    for _ in range(2):
        for number, cost in enumerate(figures):
            costs.report(f"r{number}", "m", cost)
    return costs


def test_one_alone_is_taken_at_its_word() -> None:
    assert reported((8.0, 1.0)).cost("r0", DEFAULT) == (8.0, 1.0)


def test_alike_ones_have_the_median_and_others_their_own() -> None:
    costs = reported((8.0, 1.0), (10.0, 0.9), (9.0, 1.1), (1.0, 0.1), (30.0, 4.0))
    assert [costs.cost(f"r{n}", DEFAULT) for n in range(3)] == [(9.0, 1.0)] * 3
    assert (costs.cost("r3", DEFAULT), costs.cost("r4", DEFAULT)) == ((1.0, 0.1), (30.0, 4.0))


def test_who_says_something_new_is_heard() -> None:
    costs = reported((8.0, 1.0), (8.0, 1.0), (8.0, 1.0))
    for number in range(3):
        costs.report(f"r{number}", "m", (8.0, 0.8))
    assert costs.cost("r0", DEFAULT) == (8.0, 0.8)
    costs.report("r0", "m", (8.0, 8.0))
    assert costs.cost("r0", DEFAULT) == (8.0, 8.0)


def test_groups_stand_alone_and_end_with_their_last_replica() -> None:
    costs = reported((8.0, 1.0))
    costs.report("other", "n", (9.0, 1.0))
    assert costs.cost("other", DEFAULT) == (9.0, 1.0)
    costs.report("other", "m", (9.0, 1.0))
    costs.report("r0", "m", (7.0, 1.0))
    assert costs.cost("other", DEFAULT) == costs.cost("r0", DEFAULT) == (8.0, 1.0)
    for name in ("r0", "other", "nobody"):
        costs.forget(name)
    assert costs.cost("r0", DEFAULT) == DEFAULT


COST = st.tuples(st.floats(0.0, 100.0), st.floats(0.01, 10.0))


@given(st.lists(COST, min_size=1, max_size=20))
def test_no_call_is_taken_for_more_than_a_kind_apart(figures: list[tuple[float, float]]) -> None:
    costs = reported(*figures)
    for number, (fixed_ms, row_ms) in enumerate(figures):
        own_ms = fixed_ms + 256 * row_ms
        taken_fixed_ms, taken_row_ms = costs.cost(f"r{number}", DEFAULT)
        ratio = (taken_fixed_ms + 256 * taken_row_ms) / own_ms
        assert 0.99 / KIND_RATIO <= ratio <= 1.01 * KIND_RATIO
