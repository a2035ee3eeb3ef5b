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
            costs.report(f"r{number}", "m", cost, is_guess=False)
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
        costs.report(f"r{number}", "m", (8.0, 0.8), is_guess=False)
    assert costs.cost("r0", DEFAULT) == (8.0, 0.8)
    costs.report("r0", "m", (8.0, 8.0), is_guess=False)
    assert costs.cost("r0", DEFAULT) == (8.0, 8.0)


def test_groups_stand_alone_and_end_with_their_last_replica() -> None:
    costs = reported((8.0, 1.0))
    costs.report("other", "n", (9.0, 1.0), is_guess=False)
    assert costs.cost("other", DEFAULT) == (9.0, 1.0)
    costs.report("other", "m", (9.0, 1.0), is_guess=False)
    costs.report("r0", "m", (7.0, 1.0), is_guess=False)
    assert costs.cost("other", DEFAULT) == costs.cost("r0", DEFAULT) == (8.0, 1.0)
    for name in ("r0", "other", "nobody"):
        costs.forget(name)
    assert costs.cost("r0", DEFAULT) == DEFAULT


def test_a_guess_counts_for_nothing_where_others_have_measured() -> None:
    costs = reported((8.0, 0.5), (8.0, 0.5))
    for name in ("new", "newer", "newest"):
        costs.report(name, "m", (8.0, 5.0), is_guess=True)
    assert [costs.cost(name, DEFAULT) for name in ("new", "r0")] == [(8.0, 0.5)] * 2
    costs.report("new", "m", (8.0, 5.0), is_guess=False)
    assert costs.cost("new", DEFAULT) == (8.0, 5.0), "measured, and of another kind"
    costs.report("new", "m", (8.0, 5.0), is_guess=True)
    assert costs.cost("new", DEFAULT) == (8.0, 0.5), "another process took its place"


def test_where_none_has_measured_each_has_its_guess() -> None:
    costs = CallCosts()
    costs.report("a", "m", (8.0, 1.0), is_guess=True)
    costs.report("b", "m", (8.0, 2.0), is_guess=True)
    assert (costs.cost("a", DEFAULT), costs.cost("b", DEFAULT)) == ((8.0, 1.0), (8.0, 2.0))
    costs.forget("a")
    costs.forget("b")
    assert costs.cost("b", DEFAULT) == DEFAULT


COST = st.tuples(st.floats(0.0, 100.0), st.floats(0.01, 10.0))


@given(st.lists(COST, min_size=1, max_size=20))
def test_no_call_is_taken_for_more_than_a_kind_apart(figures: list[tuple[float, float]]) -> None:
    costs = reported(*figures)
    for number, (fixed_ms, row_ms) in enumerate(figures):
        own_ms = fixed_ms + 256 * row_ms
        taken_fixed_ms, taken_row_ms = costs.cost(f"r{number}", DEFAULT)
        ratio = (taken_fixed_ms + 256 * taken_row_ms) / own_ms
        assert 0.99 / KIND_RATIO <= ratio <= 1.01 * KIND_RATIO
