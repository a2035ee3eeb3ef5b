"""What a chat becomes for the model that it gets."""

from __future__ import annotations

from outrider.models.suggested_sampling import SuggestedSampling
from outrider.sampling.params import SamplingParams
from services.edge.models.model_limits import ModelLimits
from services.edge.session.events import ChatRequest

COOL = SuggestedSampling(temperature=0.2, top_p=0.9, repetition_penalty=1.1)


def asked(*left: str, **sampling: float) -> ChatRequest:
    params = SamplingParams(max_tokens=500, **sampling)  # type: ignore[arg-type]
    return ChatRequest("r", "m", (), params, left_to_model=left)


def test_values_that_a_request_leaves_out_are_the_models_own() -> None:
    request = asked("top_p", "repetition_penalty", temperature=1.5)
    found = ModelLimits("m", 100, 64, COOL).fitted(request).sampling
    assert (found.temperature, found.top_p, found.repetition_penalty) == (1.5, 0.9, 1.1)
    assert found.max_tokens == 64


def test_a_request_that_says_all_is_sampled_as_it_says() -> None:
    found = ModelLimits("m", 100, 64, COOL).fitted(asked(temperature=0.0)).sampling
    assert found == SamplingParams(max_tokens=64)


def test_a_model_without_settings_leaves_the_request_as_it_is() -> None:
    request = asked("temperature", "top_p", temperature=1.0)
    assert ModelLimits("m", 100, 500).fitted(request) is request
