"""Sampling that a model's makers suggest: its `generation_config.json`, or the fields
`general.sampling.*` of a GGUF file. Pure.

Conversations at a terminal begin with these values, and requests over HTTP get them for what they
leave out. The Python client's do not: unset values mean greedy, as SamplingParams documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from outrider.errors import InvalidSamplingError
from outrider.sampling.params import MIN_REPETITION_PENALTY

GGUF_FIELDS: Final = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
"""By our name, the field of a GGUF file."""
_RANGES: Final = {
    "temperature": (0.0, 2.0),
    "top_k": (0, (1 << 31) - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (MIN_REPETITION_PENALTY, 10.0),
}
_ABOVE_ZERO: Final = ("top_p",)


@dataclass(frozen=True, slots=True)
class SuggestedSampling:
    """Values as in SamplingParams. Raises InvalidSamplingError at construction."""

    temperature: float = 1.0
    """1.0 if only other values are suggested: the model's probabilities as they are."""
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name in _RANGES:
            if not is_suggestion(name, value := getattr(self, name)):
                low, high = _RANGES[name]
                bracket = "above" if name in _ABOVE_ZERO else "at least"
                raise InvalidSamplingError(
                    f"{name} must be a number {bracket} {low:g} and at most {high}, "
                    f"not {repr(value)[:100]}"
                )

    def values(self) -> dict[str, Any]:
        """By name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


def is_suggestion(name: str, value: object) -> bool:
    """Whether a value can be had for the quantity of this name."""
    if isinstance(value, bool) or not isinstance(value, int if name == "top_k" else int | float):
        return False
    low, high = _RANGES[name]
    return low <= value <= high and not (name in _ABOVE_ZERO and value == 0)  # NaN is in no range


def of_generation_config(config: Mapping[str, Any]) -> SuggestedSampling | None:
    """The suggestion of a `generation_config.json`; None if it has no value. Values out of range
    are ignored: a model is not refused for them. `do_sample` false means greedy, as in
    transformers."""
    found = {name: config[name] for name in _RANGES if is_suggestion(name, config.get(name))}
    if config.get("do_sample") is False:
        found["temperature"] = 0.0
    return SuggestedSampling(**found) if found else None


OUTRIDERS_OWN: Final = SuggestedSampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
"""For models whose makers suggest nothing: llama.cpp's defaults, which most such models run
with."""
