"""Small random gpt-oss models in GGUF files, and what they say, computed with numpy row by row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np
import numpy.typing as npt

from tests.fidelity.models import F32, quantised
from tests.models.gguf_files import write_out

Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GptOss:
    """A small model's sizes."""

    vocabulary: int = 96
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 32
    inner: int = 64
    layers: int = 2
    experts: int = 6
    chosen: int = 2
    window: int = 5
    base: float = 1000.0
    factor: float = 8.0
    original_context: int = 64
    context: int = 512
    epsilon: float = 1e-5

    @property
    def frequencies(self) -> npt.NDArray[np.float64]:
        """By YaRN: pairs that turn more than 32 times within the original context stay, those that
        turn less than once are divided, and the rest lies between, in proportion to its number."""
        found = []
        half = self.head_size // 2

        def number(turns: float) -> float:
            """Of the pair that turns so often."""
            around = self.original_context / (2 * math.pi * turns)
            return half * math.log(around) / math.log(self.base)

        first, last = number(32), number(1)
        for pair in range(half):
            plain = self.base ** (-pair / half)
            share = min(1.0, max(0.0, (pair - first) / (last - first)))
            found.append(plain * (1 - share) + plain / self.factor * share)
        return np.array(found)


def weights(shape: GptOss, *, scale: float = 0.15) -> dict[str, Floats]:
    """Random tensors by their names, matrices of about this RMS. Sinks and scores are large enough
    to matter. Eight bits store every matrix exactly: else a small error could choose another
    expert, and be a large one."""
    rng = np.random.default_rng(11)
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    sizes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (shape.vocabulary, shape.width),
        "output.weight": (shape.vocabulary, shape.width),
    }
    gains = ["output_norm.weight"]
    found = dict[str, Floats]()
    for layer in range(shape.layers):
        here = f"blk.{layer}."
        products: tuple[tuple[str, tuple[int, ...]], ...] = (
            ("attn_q", (queries, shape.width)),
            ("attn_k", (keys, shape.width)),
            ("attn_v", (keys, shape.width)),
            ("attn_output", (shape.width, queries)),
            ("ffn_gate_inp", (shape.experts, shape.width)),
            ("ffn_gate_exps", (shape.experts, shape.inner, shape.width)),
            ("ffn_up_exps", (shape.experts, shape.inner, shape.width)),
            ("ffn_down_exps", (shape.experts, shape.width, shape.inner)),
        )
        for name, size in products:
            sizes[f"{here}{name}.weight"] = size
            sizes[f"{here}{name}.bias"] = size[:-1]
        gains += [f"{here}attn_norm.weight", f"{here}post_attention_norm.weight"]
        found[f"{here}attn_sinks.weight"] = rng.uniform(0, 4, shape.heads).astype(np.float32)
    for name, size in sizes.items():
        values = rng.standard_normal(size)
        if name.endswith(".weight"):
            # Steps of an f16's power of two, the most of which occur in each group of 32.
            values = np.clip(np.rint(values * 40), -127, 127)
            values[..., ::32] = rng.choice([-127, 127], values[..., ::32].shape)
            found[name] = (values * 2 ** np.rint(math.log2(scale / 40))).astype(np.float32)
        else:
            found[name] = (values * scale).astype(np.float32)
    return found | {n: rng.uniform(0.5, 1.5, shape.width).astype(np.float32) for n in gains}


def write(
    path: Path,
    shape: GptOss,
    tensors: Mapping[str, Floats],
    add_tokenizer: Callable[[gguf.GGUFWriter], None],
    experts: gguf.GGMLQuantizationType = F32,
    **fields: Any,
) -> Path:
    """The model's file, its experts of this type; `fields` are changes of numbers."""
    writer = gguf.GGUFWriter(path, "gpt-oss")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.inner)
    writer.add_expert_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_sliding_window(shape.window)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.chosen)
    writer.add_rope_freq_base(shape.base)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(shape.factor)
    writer.add_rope_scaling_orig_ctx_len(shape.original_context)
    for name, value in fields.items():
        writer.add_float32(f"gpt-oss.{name.replace('__', '.')}", value)
    add_tokenizer(writer)
    for name, tensor in tensors.items():
        if "_exps.weight" in name and experts != F32:
            rows = quantised(tensor.reshape(-1, tensor.shape[-1]), experts)
            packed = rows.reshape(*tensor.shape[:-1], -1)
            writer.add_tensor(name, packed, raw_dtype=experts)
        else:
            writer.add_tensor(name, tensor)
    write_out(writer)
    return path


def logits_of(shape: GptOss, tensors: Mapping[str, Floats], ids: Sequence[int]) -> Floats:
    """[n, V], as the model's published code computes them."""
    count, size = len(ids), shape.head_size
    angles = np.outer(np.arange(count), shape.frequencies)
    amplitude = 0.1 * math.log(shape.factor) + 1
    cosine, sine = np.cos(angles) * amplitude, np.sin(angles) * amplitude

    def norm(rows: Any, name: str) -> Any:
        power = np.mean(rows**2, -1, keepdims=True)
        return rows / np.sqrt(power + shape.epsilon) * tensors[f"{name}.weight"]

    def linear(rows: Any, name: str) -> Any:
        return rows @ tensors[f"{name}.weight"].T.astype(np.float64) + tensors[f"{name}.bias"]

    def turned(row: Any, at: int) -> Any:
        first, second = row[: size // 2], row[size // 2 :]
        return np.concatenate(
            [first * cosine[at] - second * sine[at], second * cosine[at] + first * sine[at]]
        )

    state = tensors["token_embd.weight"][np.asarray(ids)].astype(np.float64)
    for layer in range(shape.layers):
        here = f"blk.{layer}."
        seen = norm(state, f"{here}attn_norm")
        queries, keys, values = (
            linear(seen, f"{here}attn_{it}").reshape(count, -1, size) for it in "qkv"
        )
        mixed = np.zeros((count, shape.heads, size))
        sinks = tensors[f"{here}attn_sinks.weight"]
        for at in range(count):
            first = 0 if layer % 2 else max(0, at - shape.window + 1)
            for head in range(shape.heads):
                of = head // (shape.heads // shape.kv_heads)
                query = turned(queries[at, head], at)
                scores = [
                    query @ turned(keys[past, of], past) / math.sqrt(size)
                    for past in range(first, at + 1)
                ]
                shares = np.exp(np.array([*scores, sinks[head]]))
                shares /= shares.sum()
                mixed[at, head] = shares[:-1] @ values[first : at + 1, of]
        state = state + linear(mixed.reshape(count, -1), f"{here}attn_output")
        seen = norm(state, f"{here}post_attention_norm")
        state = state + np.stack([_experts(shape, tensors, here, row) for row in seen])
    whole = norm(state, "output_norm") @ tensors["output.weight"].T.astype(np.float64)
    return np.asarray(whole, np.float32)


def _experts(shape: GptOss, tensors: Mapping[str, Floats], here: str, row: Any) -> Any:
    """One row through the experts that it chooses."""
    name = f"{here}ffn_gate_inp"
    scores = tensors[f"{name}.weight"] @ row + tensors[f"{name}.bias"]
    best = np.argsort(-scores)[: shape.chosen]
    shares = np.exp(scores[best]) / np.exp(scores[best]).sum()
    mixed = np.zeros(shape.width)
    for share, expert in zip(shares, best, strict=True):

        def product(part: str, rows: Any, expert: int = expert) -> Any:
            matrix = tensors[f"{here}ffn_{part}_exps.weight"][expert]
            return matrix @ rows + tensors[f"{here}ffn_{part}_exps.bias"][expert]

        gate = np.minimum(product("gate", row), 7.0)
        up = np.clip(product("up", row), -7.0, 7.0)
        opened = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
        mixed += share * product("down", opened)
    return mixed
