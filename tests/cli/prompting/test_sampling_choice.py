"""How a conversation is sampled when no flag says it."""

from __future__ import annotations

import pytest

from outrider.cli.prompting.sampling_choice import choose_sampling
from outrider.client import ModelInfo
from outrider.models.suggested_sampling import OUTRIDERS_OWN, SuggestedSampling
from outrider.sampling.params import SamplingParams

COOL = SuggestedSampling(temperature=0.2, top_p=0.9)
MODELS = (
    ModelInfo("first", b"1" * 32, 8192, COOL, True),
    ModelInfo("second", b"2" * 32, 8192, COOL),
    ModelInfo("silent", b"3" * 32, 8192),
    ModelInfo("unread", b"", 8192),
)


@pytest.mark.parametrize(
    ("model", "sampling", "source", "is_final"),
    [
        ("", COOL, "the model's definition", True),
        ("first", COOL, "the model's definition", True),
        ("second", COOL, "the model's generation settings", True),
        ("silent", OUTRIDERS_OWN, "the model suggests none", True),
        ("unread", OUTRIDERS_OWN, "has not loaded the model yet", False),
        ("other", OUTRIDERS_OWN, "without a key", True),
    ],
)
def test_the_choice_and_where_it_is_from(
    model: str, sampling: SuggestedSampling, source: str, is_final: bool
) -> None:
    choice = choose_sampling(model, MODELS)
    assert (choice.sampling, choice.is_final) == (sampling, is_final)
    assert source in choice.source


def test_only_the_shape_of_the_noise_changes() -> None:
    asked = SamplingParams(seed=7, max_tokens=9, stop=("x",))
    got = choose_sampling("", MODELS).applied_to(asked)
    assert got == SamplingParams(temperature=0.2, top_p=0.9, seed=7, max_tokens=9, stop=("x",))
