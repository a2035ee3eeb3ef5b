"""What small random checkpoints of Gemma 3 say, computed with numpy as upstream's modeling code
does, from its tensors as it names them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.models.checkpoints import WINDOWED, Floats, Small


def gemma_logits_of(
    small: Small, tensors: Mapping[str, Floats], ids: Sequence[int], embedding_scale: float
) -> Floats:
    """[n, V]; `embedding_scale` is the root of the width as a number of the checkpoint's type."""
    weights = {name: values.astype(np.float64) for name, values in tensors.items()}
    embedding = weights["model.embed_tokens.weight"]
    state = embedding[np.asarray(ids)] * embedding_scale
    for layer, kind in enumerate(small.layer_types):
        part = _part(weights, f"model.layers.{layer}.")
        seen = _norm(small, state, part["input_layernorm"])
        mixed = _attention(small, kind, part, seen)
        state = state + _norm(small, mixed, part["post_attention_layernorm"])
        seen = _norm(small, state, part["pre_feedforward_layernorm"])
        gate = seen @ part["mlp.gate_proj"].T
        cubic = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        inner = 0.5 * gate * (1 + np.tanh(cubic)) * (seen @ part["mlp.up_proj"].T)
        down = inner @ part["mlp.down_proj"].T
        state = state + _norm(small, down, part["post_feedforward_layernorm"])
    head = embedding if small.tied else weights["lm_head.weight"]
    return np.asarray(_norm(small, state, weights["model.norm.weight"]) @ head.T, np.float32)


def _part(weights: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(prefix).removesuffix(".weight"): values
        for name, values in weights.items()
        if name.startswith(prefix)
    }


def _norm(small: Small, rows: Any, weight: Any) -> Any:
    power = np.mean(rows**2, -1, keepdims=True)
    return rows / np.sqrt(power + small.epsilon) * (1 + weight)


def _attention(small: Small, kind: str, part: Mapping[str, Any], seen: Any) -> Any:
    count, size = len(seen), small.head_size
    has_window = kind == WINDOWED
    base = small.window_base if has_window else small.base
    positions = np.arange(count) / (1 if has_window else small.factor)
    angles = np.outer(positions, base ** -(np.arange(0, size, 2) / size))
    cosine, sine = np.tile(np.cos(angles), 2), np.tile(np.sin(angles), 2)

    def heads(letter: str) -> Any:
        rows = (seen @ part[f"self_attn.{letter}_proj"].T).reshape(count, -1, size)
        rows = rows.swapaxes(0, 1)
        if letter == "v":
            return rows
        rows = _norm(small, rows, part[f"self_attn.{letter}_norm"])
        first, second = np.split(rows, 2, -1)
        return rows * cosine + np.concatenate([-second, first], -1) * sine

    shared = small.heads // small.kv_heads
    keys, values = (np.repeat(heads(letter), shared, 0) for letter in "kv")
    scores = heads("q") @ keys.swapaxes(1, 2) * small.scalar**-0.5
    for query, key in np.ndindex(count, count):
        if key > query or (has_window and key <= query - small.window):
            scores[:, query, key] = -np.inf
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    mixed = (scores @ values).swapaxes(0, 1).reshape(count, -1)
    return mixed @ part["self_attn.o_proj"].T
