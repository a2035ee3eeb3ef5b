"""Differences in computation between architectures, from a model file (pure).

Most have one rule for all layers. Gemma 3 scales its embeddings, and most of its layers attend to a
window of the newest tokens, with a rotary base of their own; for missing numbers llama.cpp's rule
holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Protocol

from outrider.errors import UnsupportedModelError

GEMMA3: Final = "gemma3"
_LARGEST_LAYERS: Final = 62
"""Number of layers of Gemma 3 27B, whose scores are scaled by width / number of heads."""


class Fields(Protocol):
    """Looks up a field of the architecture's own."""

    def __call__(self, name: str, default: Any = None) -> Any: ...


@dataclass(frozen=True, slots=True)
class LayerRule:
    """How a layer sees tokens."""

    window: int
    """A token sees so many, itself among them; 0: itself and all before."""
    base: float
    """Base of rotary frequencies."""
    factor: float
    """Positions are divided by this."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of one model."""

    layers: tuple[LayerRule, ...]
    embedding_scale: float
    attention_scale: float
    has_gelu: bool
    """The gate of the feed-forward part is a GELU (its tanh form), not a SiLU."""


def rules_of(
    architecture: str, field: Fields, *, num_layers: int, width: int, num_heads: int, head_size: int
) -> Rules:
    """Rules from a file's fields. Raises UnsupportedModelError for a computation that is not
    supported."""
    scaling = field("rope.scaling.type", "none")
    known = ("none", "linear") if architecture == GEMMA3 else ("none",)
    if scaling not in known:
        raise UnsupportedModelError(
            f"the reference knows no rotary positions scaled by {scaling!r} in {architecture}"
        )
    base = float(field("rope.freq_base", 10_000.0))
    factor = float(field("rope.scaling.factor", 1.0)) if scaling == "linear" else 1.0
    whole = LayerRule(0, base, factor)
    if architecture != GEMMA3:
        return Rules((whole,) * num_layers, 1.0, 1 / math.sqrt(head_size), has_gelu=False)
    shared = width // num_heads if num_layers == _LARGEST_LAYERS else head_size
    return Rules(
        _gemma_layers(field, num_layers, whole),
        float(field("embedding_scale", math.sqrt(width))),
        float(field("attention.scale", 1 / math.sqrt(shared))),
        has_gelu=True,
    )


def _gemma_layers(field: Fields, num_layers: int, whole: LayerRule) -> tuple[LayerRule, ...]:
    window = int(field("attention.sliding_window", 0))
    if window == 0:
        return (whole,) * num_layers
    narrow = LayerRule(window, float(field("rope.freq_base_swa", 10_000.0)), 1.0)
    pattern = field("attention.sliding_window_pattern", 6)
    if isinstance(pattern, int):
        # Counted from one, every such layer sees all.
        pattern = [number % pattern != 0 for number in range(1, num_layers + 1)]
    return tuple(narrow if has_window else whole for has_window in pattern)
