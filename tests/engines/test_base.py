"""The number of rows an engine computes: what it is prepared for, else rounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.engines.base import NO_SIZING, SizingRule, ladder

RULE = SizingRule(ladder(24), quantum=16)


def test_an_engine_that_does_not_care() -> None:
    assert [NO_SIZING.padded(n) for n in (1, 5, 2)] == [1, 5, 2]
    assert NO_SIZING.max_prepared == 0


def test_the_ladder_rises_by_a_third_or_half_from_four_rows_on() -> None:
    assert ladder(100) == (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
    assert ladder(3) == (1, 2)
    assert ladder(0) == ()


def test_small_calls_take_the_next_size_and_large_ones_the_next_multiple() -> None:
    assert [RULE.padded(n) for n in (1, 2, 3, 5, 7, 9, 24, 25, 33)] == [
        1,
        2,
        4,
        6,
        8,
        12,
        24,
        32,
        48,
    ]
    assert RULE.rounded(17) == 32


@given(st.integers(1, 400), st.integers(0, 100))
def test_a_call_fits_and_more_rows_never_need_fewer(num_rows: int, max_rows: int) -> None:
    rule = SizingRule(ladder(max_rows), quantum=16)
    assert num_rows <= rule.padded(num_rows) <= max(2 * num_rows, num_rows + 15)
    assert rule.padded(num_rows) <= rule.padded(num_rows + 1)
