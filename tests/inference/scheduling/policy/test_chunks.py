"""Prefill chunks: never too small a chunk, never too small a rest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.inference.scheduler.chunks import chunk_tokens


@given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 4))
def test_chunk_and_rest_have_min_rows_or_are_all_or_nothing(
    num_missing: int, budget: int, min_rows: int
) -> None:
    chunk = chunk_tokens(num_missing, budget, min_rows)
    assert 0 <= chunk <= min(num_missing, budget)
    if 0 < chunk < num_missing:
        assert chunk >= min_rows
        assert num_missing - chunk >= min_rows


@given(st.integers(1, 300), st.integers(1, 4))
def test_the_smallest_budget_that_is_given_always_moves(num_missing: int, min_rows: int) -> None:
    assert chunk_tokens(num_missing, 2 * min_rows - 1, min_rows) > 0


def test_a_rest_of_one_is_not_left() -> None:
    assert chunk_tokens(9, 8, 2) == 7
    assert chunk_tokens(9, 8, 1) == 8
