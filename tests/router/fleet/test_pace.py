"""What calls take, as a replica and its peers say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.router.fleet.pace import KIND_RATIO, Pace

UNSAID = (5.0, 0.5)


def told(*costs: tuple[float, float]) -> Pace:
    pace = Pace()
    for _ in range(2):
        for number, cost in enumerate(costs):
            pace.said(f"r{number}", "m", cost)
    return pace


def test_one_alone_is_taken_at_its_word() -> None:
    assert told((8.0, 1.0)).cost("r0", UNSAID) == (8.0, 1.0)


def test_alike_ones_have_the_median_and_others_their_own() -> None:
    pace = told((8.0, 1.0), (10.0, 0.9), (9.0, 1.1), (1.0, 0.1), (30.0, 4.0))
    assert [pace.cost(f"r{n}", UNSAID) for n in range(3)] == [(9.0, 1.0)] * 3
    assert (pace.cost("r3", UNSAID), pace.cost("r4", UNSAID)) == ((1.0, 0.1), (30.0, 4.0))


def test_who_says_something_new_is_heard() -> None:
    pace = told((8.0, 1.0), (8.0, 1.0), (8.0, 1.0))
    for number in range(3):
        pace.said(f"r{number}", "m", (8.0, 0.8))
    assert pace.cost("r0", UNSAID) == (8.0, 0.8)
    pace.said("r0", "m", (8.0, 8.0))
    assert pace.cost("r0", UNSAID) == (8.0, 8.0)


def test_groups_stand_alone_and_end_with_their_last_replica() -> None:
    pace = told((8.0, 1.0))
    pace.said("other", "n", (9.0, 1.0))
    assert pace.cost("other", UNSAID) == (9.0, 1.0)
    pace.said("other", "m", (9.0, 1.0))
    pace.said("r0", "m", (7.0, 1.0))
    assert pace.cost("other", UNSAID) == pace.cost("r0", UNSAID) == (8.0, 1.0)
    for name in ("r0", "other", "nobody"):
        pace.forget(name)
    assert pace.cost("r0", UNSAID) == UNSAID


COST = st.tuples(st.floats(0.0, 100.0), st.floats(0.01, 10.0))


@given(st.lists(COST, min_size=1, max_size=20))
def test_nobodys_call_is_taken_for_more_than_a_kind_apart(costs: list[tuple[float, float]]) -> None:
    pace = told(*costs)
    for number, (fixed_ms, row_ms) in enumerate(costs):
        own_ms = fixed_ms + 256 * row_ms
        taken_fixed_ms, taken_row_ms = pace.cost(f"r{number}", UNSAID)
        ratio = (taken_fixed_ms + 256 * taken_row_ms) / own_ms
        assert 0.99 / KIND_RATIO <= ratio <= 1.01 * KIND_RATIO
