"""Order statistics and their intervals."""

import math
import random
from statistics import StatisticsError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.harness.statistics import (
    mean_ratio,
    median_interval,
    num_needed,
    quantile,
    share_interval,
    told_quantile,
)

SAMPLES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@given(samples=SAMPLES, share=st.floats(0, 1))
def test_quantiles_are_numpy_s(samples: list[float], share: float) -> None:
    assert quantile(samples, share) == pytest.approx(np.quantile(samples, share), abs=1e-6)


@pytest.mark.parametrize(("share", "count"), [(0.5, 10), (0.05, 100), (0.95, 100), (0.99, 500)])
def test_a_quantile_is_told_of_enough_samples_alone(share: float, count: int) -> None:
    samples = [float(number) for number in range(count)]
    assert told_quantile(samples, share) == quantile(samples, share)
    assert told_quantile(samples[1:], share) is None
    assert told_quantile([], share) is None


@pytest.mark.parametrize(("share", "count"), [(0.5, 10), (0.9, 50), (0.95, 100), (0.99, 500)])
def test_five_samples_lie_beyond_a_quantile_that_is_printed(share: float, count: int) -> None:
    assert num_needed(share) == count


@pytest.mark.parametrize(
    ("count", "lowest", "highest"),
    # Ranks from 1 on, as tables of the sign test have them (Conover, table A3).
    [(1, 1, 1), (5, 1, 5), (6, 1, 6), (8, 1, 8), (9, 2, 8), (20, 6, 15), (100, 40, 61)],
)
def test_the_median_s_interval_has_the_ranks_of_the_sign_test(
    count: int, lowest: int, highest: int
) -> None:
    samples = [float(rank) for rank in range(1, count + 1)]
    random.Random(1).shuffle(samples)
    assert median_interval(samples) == (lowest, highest)


def test_exact_and_approximate_ranks_meet() -> None:
    exact, near = (median_interval([float(n) for n in range(count)]) for count in (1000, 1001))
    assert near == pytest.approx(exact, abs=2)


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    rng = random.Random(5)
    hits = 0
    for _ in range(1000):
        low, high = median_interval([rng.expovariate(1.0) for _ in range(15)])
        hits += low <= math.log(2) <= high
    assert hits >= 940


def test_the_mean_of_ratios_is_geometric_and_has_an_interval() -> None:
    mean, low, high = mean_ratio([0.5, 2.0, 1.0, 1.0])
    assert mean == pytest.approx(1.0)
    assert low == pytest.approx(1 / high)
    assert high == pytest.approx(math.exp(3.18 * math.log(2) * math.sqrt(2 / 3) / 2))
    assert mean_ratio([3.0]) == pytest.approx((3.0, 0.0, math.inf))
    with pytest.raises(StatisticsError):
        mean_ratio([])


def test_an_interval_of_a_share_is_wilson_s() -> None:
    assert share_interval(8, 10) == pytest.approx((0.490, 0.943), abs=0.001)
    for count in range(1, 100):
        assert share_interval(0, count)[0] == 0
        assert share_interval(count, count)[1] == 1
    assert share_interval(0, 0) == (0, 1)
