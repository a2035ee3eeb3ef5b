"""How the replies of a conversation are sampled without flags (pure): as the model's makers
suggest, since small models repeat themselves under greedy decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from outrider.models.suggested_sampling import OUTRIDERS_OWN, SuggestedSampling
from outrider.sampling.params import SamplingParams

if TYPE_CHECKING:
    from outrider.client import ModelInfo


@dataclass(frozen=True, slots=True)
class SamplingChoice:
    """The sampling chosen, and the reason."""

    sampling: SuggestedSampling
    source: str
    """Origin of the values, for the user."""
    is_final: bool = True
    """Whether asking again would give the same."""

    def applied_to(self, params: SamplingParams) -> SamplingParams:
        """With the seed, the length and all else as they are."""
        return replace(params, **self.sampling.values())


def choose_sampling(model: str, models: Sequence[ModelInfo]) -> SamplingChoice:
    """Sampling for a model, "" being the default; `models` are those that the edge lists."""
    info = next((it for it in models if model in ("", it.name)), None)
    if info is None:
        why = "the edge does not describe this model to clients without a key"
        return SamplingChoice(OUTRIDERS_OWN, f"Outrider's own values: {why}")
    if info.suggested_sampling is not None:
        by_definition = info.is_suggested_by_definition
        source = "the model's definition" if by_definition else "the model's generation settings"
        return SamplingChoice(info.suggested_sampling, source)
    if not info.vocabulary_digest:
        why = "the edge has not loaded the model yet"
        return SamplingChoice(OUTRIDERS_OWN, f"Outrider's own values: {why}", is_final=False)
    return SamplingChoice(OUTRIDERS_OWN, "Outrider's own values: the model suggests none")


def in_words(params: SamplingParams) -> str:
    """The sampling as flags would give it, for the user; values that are off are left out."""
    if params.temperature == 0:
        return "greedy"
    parts = [f"temperature {params.temperature:g}", f"top_p {params.top_p:g}"]
    parts += [f"top_k {params.top_k}"] if params.top_k else []
    parts += [f"min_p {params.min_p:g}"] if params.min_p else []
    if params.repetition_penalty != 1:
        parts.append(f"repetition_penalty {params.repetition_penalty:g}")
    return ", ".join([*parts, f"seed {params.seed}"])
