"""A drafter that ends is started again: less and less often if it ends at once."""

from __future__ import annotations

from services.edge.drafter.restarts import FIRST_WAIT_S, MAX_WAIT_S, Restarts


def test_waits_double_up_to_the_longest() -> None:
    restarts = Restarts()
    waits = [restarts.ended(ran_s=1.0) for _ in range(9)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_one_that_ran_for_long_is_started_again_soon() -> None:
    restarts = Restarts()
    for _ in range(9):
        restarts.ended(ran_s=MAX_WAIT_S)
    assert restarts.ended(ran_s=MAX_WAIT_S) == MAX_WAIT_S, "not long enough"
    assert restarts.ended(ran_s=MAX_WAIT_S + 1.0) == FIRST_WAIT_S
    assert restarts.ended(ran_s=1.0) == 2 * FIRST_WAIT_S


def test_a_spread_shortens_one_wait_and_not_the_next() -> None:
    restarts = Restarts()
    assert restarts.ended(0.0, spread=0.5) == 0.25
    assert restarts.ended(0.0, spread=1.0) == 1.0
