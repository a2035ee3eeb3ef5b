"""Sampling values: whatever is out of range is refused, in a short sentence."""

from __future__ import annotations

import math

import pytest

from outrider.errors import InvalidSamplingError
from outrider.sampling.params import SamplingParams

FIELDS = [
    *("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "acceptance_threshold", "top_k", "seed", "max_tokens", "num_logprobs"),
    "max_thinking_tokens",
]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, 10**30, 10**4000])
@pytest.mark.parametrize("name", FIELDS)
def test_what_is_no_number_of_its_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidSamplingError, match=f"^{name} must be ") as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert len(caught.value.message) < 100
    with pytest.raises(InvalidSamplingError, match=r"^logit_bias must be "):
        SamplingParams(logit_bias={1: value})


@pytest.mark.parametrize("penalty", [0.0, 1e-309, 0.0099])
def test_a_penalty_that_scores_could_not_bear_is_refused(penalty: float) -> None:
    """Divided by it they would be no numbers, and the replica be taken for broken."""
    with pytest.raises(InvalidSamplingError, match=r"at least 0\.01 and at most 10"):
        SamplingParams(repetition_penalty=penalty)


def test_a_value_that_is_refused_is_told_back() -> None:
    with pytest.raises(InvalidSamplingError, match=r"at least 0 and at most 2, not 2\.5$"):
        SamplingParams(temperature=2.5)
