"""Sizes and constants of a decoder (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerRule:
    """How one layer sees tokens."""

    window: int
    """A token sees so many: itself and those right before; 0: all before."""
    base: float
    """Base of rotary frequencies."""
    factor: float
    """Positions are divided by this."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes and constants of a decoder."""

    vocabulary_size: int
    max_context_tokens: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    epsilon: float
    """Added to mean squares before their root."""
    embedding_scale: float
    attention_scale: float
    """Scores of attention are multiplied by it."""
    has_gelu: bool
    """The gate of the feed-forward part is a GELU (tanh form); else SiLU."""
    is_interleaved: bool
    """Rotary positions turn neighbouring values of a head, not its halves."""
    layers: tuple[LayerRule, ...]
    num_chosen_experts: int = 0
    """Experts that a token goes through; 0: the model has none."""
    rotary_amplitude: float = 1.0
    """Turned values are multiplied by it."""
