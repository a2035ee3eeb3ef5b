"""Which sizes of calls get models of their own."""

from __future__ import annotations

import pytest

from outrider.engines.base import ladder
from outrider.engines.footprint import compiled_bytes, fixed_budget
from outrider.engines.openvino.fixed_sizes import choose_sizes

GIB = 1 << 30
SIZES = ladder(32)
SMALL, MIDDLE, LARGE = 172_000_000, 665_000_000, 1_900_000_000
"""Converted weights of models with 0.13, 0.5 and 1.5 billion."""


def test_a_small_model_has_all_of_them() -> None:
    assert choose_sizes(SIZES, SMALL, 16 * GIB, 4 * GIB) == SIZES
    assert choose_sizes(SIZES, SMALL, None, 0) == SIZES


@pytest.mark.parametrize(("weights", "num"), [(MIDDLE, 2), (LARGE, 1), (8 * LARGE, 0)])
def test_a_large_one_has_few_unless_memory_is_plentiful(weights: int, num: int) -> None:
    assert choose_sizes(SIZES, weights, 16 * GIB, 4 * GIB) == SIZES[:num]
    assert choose_sizes(SIZES, weights, None, 0) == SIZES[:num]
    assert choose_sizes(SIZES, weights, 6000 * GIB, 0) == SIZES


def test_without_spare_memory_there_are_none() -> None:
    assert choose_sizes(SIZES, SMALL, 2 * GIB, 2 * GIB) == ()
    assert choose_sizes(SIZES, SMALL, GIB, 4 * GIB) == ()
    assert choose_sizes((), SMALL, 16 * GIB, 0) == ()


def test_an_operator_says_how_much_they_may_take() -> None:
    each = compiled_bytes(MIDDLE)
    assert choose_sizes(SIZES, MIDDLE, 16 * GIB, 4 * GIB, 5 * each) == SIZES[:5]
    assert choose_sizes(SIZES, MIDDLE, None, 0, 5 * each) == SIZES[:5]
    assert choose_sizes(SIZES, MIDDLE, 5 * GIB, 4 * GIB, 5 * each) == ()
    assert choose_sizes(SIZES, MIDDLE, 16 * GIB, 4 * GIB, each - 1) == ()


@pytest.mark.parametrize("weights", [SMALL, MIDDLE, LARGE])
def test_less_memory_never_means_more_models_and_the_budget_holds(weights: int) -> None:
    counts = []
    for free in range(0, 200 * GIB, GIB // 2):
        count = len(choose_sizes(SIZES, weights, free, GIB))
        assert count * compiled_bytes(weights) <= fixed_budget(free, GIB)
        counts.append(count)
    assert counts == sorted(counts)
