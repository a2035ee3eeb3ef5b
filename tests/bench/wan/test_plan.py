"""What a round asks, and in which order."""

from __future__ import annotations

from bench.wan.measure import _asked
from bench.wan.plan import OURS, PLAIN, CellGroup, Size

SIZE = Size(
    rounds=5,
    parts=(
        CellGroup(1, 0.0, (0.0, 50.0), {PLAIN: 2, OURS: 1}),
        CellGroup(4, 0.0, (50.0,), {PLAIN: 4, OURS: 4}, rounds=1),
    ),
    max_tokens=8,
)


def test_the_order_of_rtts_changes_and_crowds_come_once() -> None:
    alone, crowd = SIZE.parts
    assert SIZE.steps(0) == [(0.0, alone), (50.0, alone), (50.0, crowd)]
    assert SIZE.steps(1) == [(50.0, alone), (0.0, alone)]


def test_schemes_take_turns_and_another_begins_each_time() -> None:
    alone, crowd = SIZE.parts
    assert list(_asked(alone, 0)) == [(PLAIN, 0, 1), (OURS, 0, 1), (PLAIN, 1, 1)]
    assert list(_asked(alone, 1))[:2] == [(OURS, 0, 1), (PLAIN, 0, 1)]
    assert list(_asked(crowd, 1)) == [(OURS, 0, 4), (PLAIN, 0, 4)]
