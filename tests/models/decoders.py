"""A small random decoder that embeds, of the Qwen3 kind, as a folder of sentence-transformers, and
what any such model makes of ids, computed with numpy, text by text and head by head."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.models.checkpoints import Tensors, packed
from tests.models.encoders import TOKENS, modules, pooling, tokenizer

WIDTH, HEADS, KV_HEADS, SIZE, INNER, LAYERS = 64, 4, 2, 32, 128, 2


def config(**changes: Any) -> dict[str, Any]:
    """config.json."""
    return {
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": SIZE,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "max_position_embeddings": 400,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1_000_000,
        "vocab_size": len(TOKENS),
    } | changes


def write_decoder(folder: Path, prefix: str = "") -> Tensors:
    """The folder; names of tensors begin with `prefix`. Returns its weights."""
    rng = np.random.default_rng(5)
    made: Tensors = {}

    def add(name: str, *shape: int, scale: float, around: float = 0.0) -> None:
        values = rng.standard_normal(shape) * scale + around
        made[f"{prefix}{name}.weight"] = values.astype(np.float32)

    add("embed_tokens", len(TOKENS), WIDTH, scale=1.0)
    for layer in range(LAYERS):
        here = f"layers.{layer}."
        for part, rows in (("q", HEADS * SIZE), ("k", KV_HEADS * SIZE), ("v", KV_HEADS * SIZE)):
            add(f"{here}self_attn.{part}_proj", rows, WIDTH, scale=0.2)
        add(f"{here}self_attn.o_proj", WIDTH, HEADS * SIZE, scale=0.2)
        for part in ("q", "k"):
            add(f"{here}self_attn.{part}_norm", SIZE, scale=0.2, around=1.0)
        add(f"{here}mlp.gate_proj", INNER, WIDTH, scale=0.2)
        add(f"{here}mlp.up_proj", INNER, WIDTH, scale=0.2)
        add(f"{here}mlp.down_proj", WIDTH, INNER, scale=0.2)
        for name in ("input_layernorm", "post_attention_layernorm"):
            add(f"{here}{name}", WIDTH, scale=0.2, around=1.0)
    add("norm", WIDTH, scale=0.2, around=1.0)
    (folder / "1_Pooling").mkdir(parents=True)
    files: dict[str, Any] = {
        "config.json": config(),
        "tokenizer.json": tokenizer(),
        "modules.json": modules("Transformer", "Pooling", "Normalize"),
        "1_Pooling/config.json": pooling("lasttoken"),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "model.safetensors").write_bytes(packed(made))
    return made


def reference(tensors: Mapping[str, Any], ids: Sequence[int]) -> npt.NDArray[np.float64]:
    """The vector of one text; names of `tensors` without a prefix."""
    shape = config()

    def weight(name: str) -> Any:
        return tensors[f"{name}.weight"].astype(np.float64)

    def norm(rows: Any, name: str) -> Any:
        return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-6) * weight(name)

    def turned(row: Any, position: int) -> Any:
        made = np.empty_like(row)
        for pair in range(SIZE // 2):
            angle = position * shape["rope_theta"] ** (-2 * pair / SIZE)
            one, other = row[pair], row[pair + SIZE // 2]
            made[pair] = one * math.cos(angle) - other * math.sin(angle)
            made[pair + SIZE // 2] = other * math.cos(angle) + one * math.sin(angle)
        return made

    def heads(rows: Any, name: str, count: int, norm_name: str = "") -> Any:
        """[heads, tokens, head size]"""
        apart = (rows @ weight(name).T).reshape(len(rows), count, SIZE).swapaxes(0, 1)
        if not norm_name:
            return apart
        normed = norm(apart, norm_name)
        return np.array([[turned(row, at) for at, row in enumerate(head)] for head in normed])

    rows = weight("embed_tokens")[list(ids)]
    for layer in range(LAYERS):
        here = f"layers.{layer}."
        own = f"{here}self_attn."
        given = norm(rows, f"{here}input_layernorm")
        query = heads(given, f"{own}q_proj", HEADS, f"{own}q_norm")
        key = heads(given, f"{own}k_proj", KV_HEADS, f"{own}k_norm")
        value = heads(given, f"{own}v_proj", KV_HEADS)
        mixed = np.zeros((len(ids), HEADS * SIZE))
        for head in range(HEADS):
            shared = head * KV_HEADS // HEADS
            for at in range(len(ids)):
                scores = key[shared][: at + 1] @ query[head][at] / math.sqrt(SIZE)
                odds = np.exp(scores - scores.max())
                found = odds / odds.sum() @ value[shared][: at + 1]
                mixed[at, head * SIZE : (head + 1) * SIZE] = found
        rows = rows + mixed @ weight(f"{own}o_proj").T
        given = norm(rows, f"{here}post_attention_layernorm")
        gate = given @ weight(f"{here}mlp.gate_proj").T
        inner = gate / (1 + np.exp(-gate)) * (given @ weight(f"{here}mlp.up_proj").T)
        rows = rows + inner @ weight(f"{here}mlp.down_proj").T
    last = norm(rows, "norm")[-1]
    vector: npt.NDArray[np.float64] = last / np.linalg.norm(last)
    return vector
