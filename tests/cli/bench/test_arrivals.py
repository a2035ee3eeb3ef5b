"""When the requests of a load test arrive."""

from __future__ import annotations

import math
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cli.bench.arrivals import arrival_times, made_prompts


@given(st.integers(1, 200), st.floats(0.1, 1e3), st.floats(0.05, 50), st.integers(0, 99))
def test_times_ascend_and_are_the_seeds(
    number: int, rate: float, burstiness: float, seed: int
) -> None:
    times = arrival_times(number, rate, burstiness, seed)
    assert len(times) == number
    assert all(0 <= before <= after for before, after in pairwise([0.0, *times]))
    assert times == arrival_times(number, rate, burstiness, seed)


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_the_rate_and_its_spread_are_what_was_asked_for(burstiness: float) -> None:
    times = arrival_times(20_000, 10.0, burstiness, 1)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(0.1, rel=0.05)
    assert deviation / mean == pytest.approx(burstiness**-0.5, rel=0.1)


def test_all_at_once() -> None:
    assert arrival_times(3, math.inf, 1.0, 1) == [0.0, 0.0, 0.0]


def test_prompts_are_of_that_length_and_no_two_begin_alike() -> None:
    prompts = list(islice(made_prompts(20, 7), 50))
    assert {len(prompt.split()) for prompt in prompts} == {20}
    assert len({prompt.split()[0] for prompt in prompts}) == 50
    assert prompts == list(islice(made_prompts(20, 7), 50))
