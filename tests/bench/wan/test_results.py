"""Intervals of means, ratios and shares, by chat."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.wan.results import Estimate, mean, quantile_over_chats, ratio, share


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Of skewed samples with mean 1: 95 % nominally, less by a little for forty values."""
    drawn = np.random.default_rng(3).exponential(1.0, (200, 40))
    found = [mean(list(row)) for row in drawn]
    assert sum(one.low <= 1 <= one.high for one in found) >= 170


@given(st.lists(st.floats(1, 100), min_size=3, max_size=30), st.floats(0.1, 10))
def test_a_ratio_of_proportional_times_is_certain(times_ms: list[float], factor: float) -> None:
    found = ratio([factor * time_ms for time_ms in times_ms], times_ms)
    assert [found.value, found.low, found.high] == pytest.approx([factor] * 3)


@given(st.lists(st.floats(1, 100), min_size=3, max_size=30))
def test_a_mean_lies_in_its_interval(values: list[float]) -> None:
    found = mean(values)
    assert min(values) - 1e-9 <= found.low <= found.value + 1e-9
    assert found.value - 1e-9 <= found.high <= max(values) + 1e-9


def test_shares_at_the_ends_are_not_certain() -> None:
    none, all_ = share(0.0, 10), share(1.0, 10)
    assert none.low == 0.0
    assert all_.high == pytest.approx(1.0)
    assert none.high == pytest.approx(0.278, abs=0.001)
    assert all_.low == pytest.approx(1 - none.high)


def test_quantiles_are_told_of_chats_enough() -> None:
    assert quantile_over_chats([1.0] * 19, 0.5) is None
    assert quantile_over_chats([1.0] * 20, 0.5) == 1.0
    assert quantile_over_chats([1.0] * 99, 0.95) is None
    assert quantile_over_chats([1.0] * 100, 0.95) == 1.0
    assert quantile_over_chats([1.0] * 499, 0.99) is None
    assert quantile_over_chats([1.0] * 500, 0.99) == 1.0


def test_two_chats_have_no_interval() -> None:
    found = mean([1.0, 2.0])
    assert found == Estimate(1.5, -math.inf, math.inf)
    assert (str(found), found.rounded()) == ("1.50", [1.5, None, None])
    with pytest.raises(ValueError, match="nothing"):
        mean([])
