"""How many rounds a run has, from what their parts took."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from bench.wan.plan import FULL, OURS, PLAIN, REFERENCE_START_S, CellGroup, Progress, Size

SIZE = Size(
    rounds=5,
    parts=(
        CellGroup(1, 0.0, (0.0, 50.0), {PLAIN: 2, OURS: 2}),
        CellGroup(4, 0.0, (50.0,), {PLAIN: 4, OURS: 4}, rounds=1),
    ),
    max_tokens=8,
)


def after_a_round(limit_s: float) -> Progress:
    """10 and 20 s for the chats alone, 30 s for the crowd; 5 s for a reply of the reference."""
    progress = Progress(SIZE, limit_s, reply_s=5.0)
    for step, seconds in zip(progress.steps(0), (10.0, 20.0, 30.0), strict=True):
        progress.took(*step, seconds)
    return progress


def test_the_order_of_rtts_changes_and_crowds_come_once() -> None:
    progress = Progress(SIZE)
    assert progress.steps(0) == [(0.0, 0), (50.0, 0), (50.0, 1)]
    assert progress.steps(1) == [(50.0, 0), (0.0, 0)]


def test_rounds_are_made_as_long_as_they_fit_with_their_replies() -> None:
    two_s = 60 + 30 + REFERENCE_START_S + (4 + 2) * 5
    assert after_a_round(two_s).num_rounds(1, 60.0) == 2
    assert after_a_round(two_s - 1).num_rounds(1, 60.0) == 1
    assert after_a_round(two_s + 40).num_rounds(1, 60.0) == 3
    assert after_a_round(math.inf).num_rounds(1, 60.0) == SIZE.rounds
    assert after_a_round(1.0).num_rounds(0, 0.0) >= 1, "one is always made"


def test_the_time_left_is_that_of_the_rounds_to_come() -> None:
    two_s = 60 + 30 + REFERENCE_START_S + (4 + 2) * 5
    assert after_a_round(two_s).left_s(1, 0, 60.0) == two_s - 60
    assert after_a_round(two_s).left_s(1, 1, 80.0) == two_s - 80
    assert after_a_round(two_s).left_s(1, 2, 90.0) == two_s - 90


@given(st.lists(st.floats(1, 60), min_size=30, max_size=30), st.floats(60, 2000))
def test_the_full_run_ends_in_time(took_s: list[float], limit_s: float) -> None:
    progress, now_s, turn = Progress(FULL, limit_s, reply_s=1.0), 0.0, 0
    while progress.num_rounds(turn, now_s) > turn:
        for step, seconds in zip(progress.steps(turn), took_s, strict=False):
            progress.took(*step, seconds)
            now_s += seconds
        turn += 1
    assert 1 <= turn <= FULL.rounds
    assert turn == 1 or now_s <= limit_s
