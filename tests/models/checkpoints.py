"""Small random checkpoints in safetensors, and what they say, computed with numpy from the tensors
as Hugging Face names and orders them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Tensors: TypeAlias = dict[str, Floats]

LLAMA, QWEN2, QWEN3 = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"
GEMMA3 = "Gemma3ForCausalLM"
WHOLE, WINDOWED = "full_attention", "sliding_attention"
LLAMA3_RULE = {
    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True, slots=True)
class Small:
    """A small model's sizes."""

    architecture: str = LLAMA
    vocabulary: int = 96
    width: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    inner: int = 256
    layers: int = 2
    base: float = 10_000.0
    epsilon: float = 1e-5
    tied: bool = True
    layer_types: tuple[str, ...] = ()
    """Of Gemma 3, and what follows; without it all layers see all."""
    window: int = 7
    window_base: float = 300.0
    factor: float = 1.0
    """By which positions are divided in layers that see all."""
    scalar: int = 100
    """Scores of attention are divided by its root."""

    def config(self, **changes: Any) -> dict[str, Any]:
        """Its config.json; a change of None leaves a key out."""
        found = {
            "architectures": [self.architecture],
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "max_position_embeddings": 512,
            "rms_norm_eps": self.epsilon,
            "rope_theta": self.base,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
        }
        if self.architecture == GEMMA3:
            del found["hidden_act"]
            linear = {"rope_type": "linear", "factor": self.factor}
            found |= {
                "hidden_activation": "gelu_pytorch_tanh",
                "layer_types": list(self.layer_types),
                "sliding_window": self.window,
                "rope_local_base_freq": self.window_base,
                "rope_scaling": None if self.factor == 1 else linear,
                "query_pre_attn_scalar": self.scalar,
            }
        found |= changes
        return {key: value for key, value in found.items() if value is not None}


def random_tensors(small: Small, *, scale: float = 0.06) -> Tensors:
    """Matrices of this RMS."""
    rng = np.random.default_rng(7)
    width, size = small.width, small.head_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (small.vocabulary, width)}
    gains = {"model.norm.weight": width}
    for layer in range(small.layers):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", small.heads * size, width),
            ("self_attn.k_proj", small.kv_heads * size, width),
            ("self_attn.v_proj", small.kv_heads * size, width),
            ("self_attn.o_proj", width, small.heads * size),
            ("mlp.gate_proj", small.inner, width),
            ("mlp.up_proj", small.inner, width),
            ("mlp.down_proj", width, small.inner),
        ):
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if small.architecture == QWEN2 and name[-6:] in ("q_proj", "k_proj", "v_proj"):
                shapes[f"{prefix}{name}.bias"] = (rows,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            gains[f"{prefix}{name}.weight"] = width
        if small.architecture == GEMMA3:
            for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
                gains[f"{prefix}{name}.weight"] = width
        if small.architecture in (QWEN3, GEMMA3):
            gains[f"{prefix}self_attn.q_norm.weight"] = size
            gains[f"{prefix}self_attn.k_norm.weight"] = size
    if not small.tied:
        shapes["lm_head.weight"] = (small.vocabulary, width)
    found = {n: (rng.standard_normal(s) * scale).astype(np.float32) for n, s in shapes.items()}
    least = -0.5 if small.architecture == GEMMA3 else 0.5  # 1 is added to Gemma's
    return found | {
        n: rng.uniform(least, least + 1, s).astype(np.float32) for n, s in gains.items()
    }


def as_bf16(values: Floats) -> npt.NDArray[np.uint16]:
    """Bits of the numbers cut to sixteen bits."""
    return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)


def from_bf16(bits: npt.NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def stored(tensors: Mapping[str, Floats], dtype: str) -> Tensors:
    """What a file of this type says of them."""
    if dtype == "BF16":
        return {name: from_bf16(as_bf16(values)) for name, values in tensors.items()}
    kind = np.float16 if dtype == "F16" else np.float32
    return {name: values.astype(kind).astype(np.float32) for name, values in tensors.items()}


def packed(tensors: Mapping[str, npt.NDArray[Any]], dtype: str = "F32") -> bytes:
    """A safetensors file."""
    header, data = dict[str, Any](), bytearray()
    for name, values in tensors.items():
        if dtype == "BF16":
            content = as_bf16(np.asarray(values, np.float32)).tobytes()
        else:
            content = values.astype(np.float16 if dtype == "F16" else np.float32).tobytes()
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        data += content
    return framed(header | {"__metadata__": {"format": "pt"}}, bytes(data))


def framed(header: Mapping[str, Any] | bytes, data: bytes) -> bytes:
    """A header and what follows it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def write_checkpoint(
    folder: Path,
    small: Small,
    tensors: Mapping[str, Floats],
    tokenizer_json: str,
    *,
    dtype: str = "F32",
    shards: int = 1,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """A folder as it is published; `config` has changes of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(small.config(**(config or {}))))
    (folder / "tokenizer.json").write_text(tokenizer_json)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    if shards == 1:
        (folder / "model.safetensors").write_bytes(packed(tensors, dtype))
        return folder
    names = list(tensors)
    where = dict[str, str]()
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[number::shards]}
        (folder / file).write_bytes(packed(part, dtype))
        where |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def logits_of(
    small: Small,
    tensors: Mapping[str, Floats],
    ids: Sequence[int],
    frequencies: Any = None,
    embedding_scale: float = 1.0,
) -> Floats:
    """[n, V] as the architecture's published code computes them; the rest is as in `states_of`."""
    states = states_of(small, tensors, ids, frequencies, embedding_scale)
    head = tensors["model.embed_tokens.weight" if small.tied else "lm_head.weight"]
    return np.asarray(states @ head.T, np.float32)


def states_of(
    small: Small,
    tensors: Mapping[str, Floats],
    ids: Sequence[int],
    frequencies: Any = None,
    embedding_scale: float = 1.0,
) -> npt.NDArray[np.float64]:
    """[n, width] behind the last norm. `frequencies` are radians a position for each pair, None:
    those of the layer; embeddings of Gemma 3 are scaled by the root of the width, a number of the
    checkpoint's type."""
    is_gemma = small.architecture == GEMMA3

    def norm(rows: Any, name: str) -> Any:
        power = np.mean(rows**2, -1, keepdims=True)
        gain = tensors[f"{name}.weight"].astype(np.float64) + is_gemma
        return rows / np.sqrt(power + small.epsilon) * gain

    state = tensors["model.embed_tokens.weight"][np.asarray(ids)].astype(np.float64)
    state *= embedding_scale
    for layer in range(small.layers):
        here = f"model.layers.{layer}."
        mixed = _attention(
            small, tensors, layer, norm(state, f"{here}input_layernorm"), frequencies
        )
        if is_gemma:
            mixed = norm(mixed, f"{here}post_attention_layernorm")
        state = state + mixed
        before = "pre_feedforward_layernorm" if is_gemma else "post_attention_layernorm"
        seen = norm(state, f"{here}{before}")
        gate = _times(tensors, f"{here}mlp.gate_proj", seen)
        if is_gemma:
            opened = gate / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            opened = gate / (1 + np.exp(-gate))
        inner = opened * _times(tensors, f"{here}mlp.up_proj", seen)
        down = _times(tensors, f"{here}mlp.down_proj", inner)
        state = state + (norm(down, f"{here}post_feedforward_layernorm") if is_gemma else down)
    states: npt.NDArray[np.float64] = norm(state, "model.norm")
    return states


def _times(tensors: Mapping[str, Floats], name: str, rows: Any) -> Any:
    bias = tensors.get(f"{name}.bias", np.zeros(1))
    return rows @ tensors[f"{name}.weight"].astype(np.float64).T + bias


def _attention(
    small: Small, tensors: Mapping[str, Floats], layer: int, seen: Any, frequencies: Any
) -> Any:
    here, count, size = f"model.layers.{layer}.self_attn.", len(seen), small.head_size
    is_gemma = small.architecture == GEMMA3
    has_window = is_gemma and small.layer_types[layer] == WINDOWED
    if frequencies is None:
        base = small.window_base if has_window else small.base
        frequencies = base ** -(np.arange(0, size, 2) / size) / (1 if has_window else small.factor)
    angles = np.outer(np.arange(count), frequencies)
    cosine, sine = np.tile(np.cos(angles), 2), np.tile(np.sin(angles), 2)

    def heads(letter: str) -> Any:
        rows = _times(tensors, f"{here}{letter}_proj", seen).reshape(count, -1, size).swapaxes(0, 1)
        if letter == "v":
            return rows
        if small.architecture in (QWEN3, GEMMA3):
            gain = tensors[f"{here}{letter}_norm.weight"].astype(np.float64) + is_gemma
            rows = rows / np.sqrt(np.mean(rows**2, -1, keepdims=True) + small.epsilon) * gain
        first, second = np.split(rows, 2, -1)
        return rows * cosine + np.concatenate([-second, first], -1) * sine

    keys, values = (np.repeat(heads(it), small.heads // small.kv_heads, 0) for it in "kv")
    scores = heads("q") @ keys.swapaxes(1, 2) / math.sqrt(small.scalar if is_gemma else size)
    distances = np.subtract.outer(np.arange(count), np.arange(count))
    scores[:, (distances < 0) | (has_window & (distances >= small.window))] = -np.inf
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    return _times(tensors, f"{here}o_proj", (scores @ values).swapaxes(0, 1).reshape(count, -1))
