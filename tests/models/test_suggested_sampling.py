"""What a model's files suggest to sample with."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import InvalidSamplingError
from outrider.models.suggested_sampling import SuggestedSampling, of_generation_config
from outrider.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("config", "suggested"),
    [
        ({"eos_token_id": 2}, None),
        (
            {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8},
            SuggestedSampling(temperature=0.7, top_k=20, top_p=0.8),
        ),
        ({"top_k": 64, "top_p": 0.95}, SuggestedSampling(1.0, 64, 0.95)),
        ({"do_sample": False, "temperature": 0.6}, SuggestedSampling(0.0)),
        ({"temperature": "hot", "top_k": 2.5, "top_p": 0, "min_p": float("nan")}, None),
        (
            {"temperature": True, "repetition_penalty": 1.1, "top_k": None},
            SuggestedSampling(repetition_penalty=1.1),
        ),
        ({"temperature": 10**400}, None),
    ],
)
def test_a_generation_config(config: dict[str, Any], suggested: SuggestedSampling | None) -> None:
    assert of_generation_config(config) == suggested


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 2.1},
        {"top_k": -1},
        {"top_k": 1.0},
        {"top_p": 0.0},
        {"min_p": "x"},
        {"repetition_penalty": 0},
    ],
)
def test_values_that_cannot_be_had(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSamplingError, match=next(iter(wrong))):
        SuggestedSampling(**wrong)


def test_the_extremes_can_be_asked_for() -> None:
    for edge in (
        SuggestedSampling(0.0, 0, 1e-9, 0.0, 0.01),
        SuggestedSampling(2, 2**31 - 1, 1, 1, 10),
    ):
        SamplingParams(**edge.values())
