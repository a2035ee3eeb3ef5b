"""Small random models in GGUF files, and what they say, one number at a time."""

from __future__ import annotations

import cmath
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
F32 = gguf.GGMLQuantizationType.F32
_NORMS = ("attn_norm", "ffn_norm")


@dataclass(frozen=True, slots=True)
class Shape:
    """A small model's."""

    architecture: str = "llama"
    vocabulary: int = 40
    width: int = 32
    heads: int = 4
    kv_heads: int = 2
    inner: int = 64
    layers: int = 2
    base: float = 100.0
    """Small, so that neighbouring positions turn all pairs visibly."""
    epsilon: float = 1e-3
    window: int = 3
    """Of gemma3, whose layers see such a window and all tokens in turn."""
    window_base: float = 30.0
    """Of rotary frequencies in layers with a window."""
    context: int = 512
    """Tokens of prompt and reply together."""
    factor: float = 2.0
    """By which positions are divided in gemma3's other layers."""

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @property
    def own_norms(self) -> dict[str, int]:
        """Of a layer besides those that all have: names, and how many values each has."""
        names = dict[str, int]()
        if self.architecture in ("qwen3", "gemma3"):
            names |= {"attn_q_norm": self.head_size, "attn_k_norm": self.head_size}
        if self.architecture == "gemma3":
            names |= {"post_attention_norm": self.width, "post_ffw_norm": self.width}
        return names

    def has_window(self, layer: int) -> bool:
        return self.architecture == "gemma3" and layer % 2 == 0


def weights(
    shape: Shape, *, tied: bool = True, biased: bool = False, scale: float = 0.3
) -> dict[str, Floats]:
    """Random tensors by their names, [rows, columns] or [columns], matrices of this RMS."""
    rng = np.random.default_rng(7)
    width, kv_width = shape.width, shape.kv_heads * shape.head_size
    sizes: dict[str, tuple[int, ...]] = {"token_embd.weight": (shape.vocabulary, width)}
    sizes |= {} if tied else {"output.weight": (shape.vocabulary, width)}
    for layer in range(shape.layers):
        for name, rows, columns in (
            ("attn_q", width, width),
            ("attn_k", kv_width, width),
            ("attn_v", kv_width, width),
            ("attn_output", width, width),
            ("ffn_gate", shape.inner, width),
            ("ffn_up", shape.inner, width),
            ("ffn_down", width, shape.inner),
        ):
            sizes[f"blk.{layer}.{name}.weight"] = (rows, columns)
            if biased and name in ("attn_q", "attn_k", "attn_v"):
                sizes[f"blk.{layer}.{name}.bias"] = (rows,)
    found = {
        name: (rng.standard_normal(size) * scale).astype(np.float32) for name, size in sizes.items()
    }
    gains = [f"blk.{layer}.{name}" for layer in range(shape.layers) for name in _NORMS]
    for name in (*gains, "output_norm"):
        found[f"{name}.weight"] = rng.uniform(0.5, 1.5, width).astype(np.float32)
    for layer, (name, length) in itertools.product(range(shape.layers), shape.own_norms.items()):
        gain = rng.uniform(0.5, 1.5, length).astype(np.float32)
        found[f"blk.{layer}.{name}.weight"] = gain
    return found


def write(
    path: Path,
    shape: Shape,
    tensors: Mapping[str, Floats],
    kind: gguf.GGMLQuantizationType = F32,
    vocabulary: Sequence[str] = (),
    *,
    whole: bool = False,
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    add_tokenizer: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    **fields: Any,
) -> Path:
    """The model's file; matrices of the layers, or of the `whole` model, are of type `kind`. With a
    vocabulary, a tokenizer of these texts without merges, or what `add_tokenizer` writes. `kinds`
    are types of single tensors, `fields` more of the architecture's own, texts."""
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(shape.base)
    if shape.architecture in ("qwen3", "gemma3"):
        writer.add_key_length(shape.head_size)
        writer.add_value_length(shape.head_size)
    if shape.architecture == "gemma3":
        writer.add_sliding_window(shape.window)
        writer.add_sliding_window_pattern(2)
        writer.add_rope_freq_base_swa(shape.window_base)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(shape.factor)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    for name, text in fields.items():
        writer.add_string(f"{shape.architecture}.{name.replace('__', '.')}", text)
    if vocabulary:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(list(vocabulary))
        writer.add_token_types([gguf.TokenType.NORMAL] * len(vocabulary))
        writer.add_token_merges(["a b"])
    add_tokenizer(writer)
    for name, tensor in tensors.items():
        if kinds is not None and name in kinds:
            writer.add_tensor(name, quantised(tensor, kinds[name]), raw_dtype=kinds[name])
        elif tensor.ndim == 2 and kind != F32 and (whole or name.startswith("blk.")):
            writer.add_tensor(name, quantised(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantised(matrix: Floats, kind: gguf.GGMLQuantizationType) -> npt.NDArray[Any]:
    """A matrix in this type. Of the types for which the `gguf` package has no way to write them,
    random blocks with scales that keep the values small."""
    try:
        return np.asarray(gguf.quantize(matrix, kind))
    except NotImplementedError:
        return _random_blocks(matrix, kind)


_SCALES_AT: dict[str, tuple[int, ...]] = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ1_S": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
"""Where in a block of each type its f16 scales are (ggml-common.h)."""


def _random_blocks(matrix: Floats, kind: gguf.GGMLQuantizationType) -> npt.NDArray[Any]:
    shape, aim = matrix.shape, float(np.sqrt(np.mean(matrix**2)))
    rng = np.random.default_rng(int(kind))
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // values, size), np.uint8)
    unit = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    for at in _SCALES_AT.get(kind.name, ()):
        blocks[..., at : at + 2] = unit
    if kind.name == "IQ1_M":  # the scale is in the upper four bits of four words
        words = blocks[..., 48:56].view(np.uint16)
        words &= 0x0FFF
        words |= np.array([0, 0, 0, 0x2000], np.uint16)  # 2 ** -7
    if kind.name == "MXFP4":
        blocks[..., 0] = 127
    raw = blocks.reshape(shape[0], -1)
    # The scales of all blocks alike are turned down so that the values are as small as others'.
    power = float(np.sqrt(np.mean(gguf.dequantize(raw, kind) ** 2)))
    scale = np.frombuffer(np.float16(aim / power).tobytes(), np.uint8)
    for at in _SCALES_AT.get(kind.name, ()):
        blocks[..., at : at + 2] = scale
    if kind.name == "MXFP4":
        blocks[..., 0] = 127 + round(math.log2(aim / power))
    return blocks.reshape(shape[0], -1)


def naive_logits(
    shape: Shape, tensors: Mapping[str, Floats], ids: Sequence[int]
) -> list[list[float]]:
    """[n][V]: position by position, pair by pair, in Python's own numbers."""
    model = {name: tensor.tolist() for name, tensor in tensors.items()}
    head = model.get("output.weight", model["token_embd.weight"])
    keys: list[list[list[float]]] = [[] for _ in range(shape.layers)]
    values: list[list[list[float]]] = [[] for _ in range(shape.layers)]
    logits = []
    for position, token in enumerate(ids):
        state = model["token_embd.weight"][token]
        if shape.architecture == "gemma3":
            state = [value * math.sqrt(shape.width) for value in state]
        for layer in range(shape.layers):
            part = {n: model[f"blk.{layer}.{n}"] for n in _parts(model, layer)}
            normed = _norm(state, part["attn_norm.weight"], shape.epsilon)
            turn = _angle(shape, layer, position)
            query = _turned(shape, _headwise(shape, part, "attn_q", normed), turn)
            keys[layer].append(_turned(shape, _headwise(shape, part, "attn_k", normed), turn))
            values[layer].append(_times(part, "attn_v", normed))
            seen = slice(-shape.window if shape.has_window(layer) else None, None)
            mixed = _attend(shape, query, keys[layer][seen], values[layer][seen])
            mixed = _times(part, "attn_output", mixed)
            state = _sum(state, _normed_again(shape, part, "post_attention_norm", mixed))
            normed = _norm(state, part["ffn_norm.weight"], shape.epsilon)
            gates = zip(
                _times(part, "ffn_gate", normed), _times(part, "ffn_up", normed), strict=True
            )
            opened = _gelu if shape.architecture == "gemma3" else _silu
            inner = [opened(gate) * up for gate, up in gates]
            down = _times(part, "ffn_down", inner)
            state = _sum(state, _normed_again(shape, part, "post_ffw_norm", down))
        normed = _norm(state, model["output_norm.weight"], shape.epsilon)
        logits.append([_dot(row, normed) for row in head])
    return logits


def _parts(model: Mapping[str, Any], layer: int) -> list[str]:
    prefix = f"blk.{layer}."
    return [name.removeprefix(prefix) for name in model if name.startswith(prefix)]


def _attend(
    shape: Shape, query: list[float], keys: list[list[float]], values: list[list[float]]
) -> list[float]:
    size, mixed = shape.head_size, list[float]()
    for head in range(shape.heads):
        mine = slice(head * size, (head + 1) * size)
        shared = head // (shape.heads // shape.kv_heads)
        theirs = slice(shared * size, (shared + 1) * size)
        weights = [math.exp(_dot(query[mine], key[theirs]) / math.sqrt(size)) for key in keys]
        total = sum(weights)
        columns = zip(*(value[theirs] for value in values), strict=True)
        mixed += [_dot(weights, list(column)) / total for column in columns]
    return mixed


def _headwise(shape: Shape, part: Mapping[str, Any], name: str, row: list[float]) -> list[float]:
    """A product, each head of which is normed where there is a gain for that."""
    product, gain = _times(part, name, row), part.get(f"{name}_norm.weight")
    if gain is None:
        return product
    starts = range(0, len(product), shape.head_size)
    heads = [product[start : start + shape.head_size] for start in starts]
    return [value for head in heads for value in _norm(head, gain, shape.epsilon)]


def _normed_again(
    shape: Shape, part: Mapping[str, Any], name: str, row: list[float]
) -> list[float]:
    gain = part.get(f"{name}.weight")
    return row if gain is None else _norm(row, gain, shape.epsilon)


def _silu(gate: float) -> float:
    return gate / (1 + math.exp(-gate))


def _gelu(gate: float) -> float:
    return gate / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))


def _angle(shape: Shape, layer: int, position: int) -> Callable[[float], float]:
    """Radians at a position, by a pair's share of the head."""
    if shape.has_window(layer):
        return lambda share: position * shape.window_base**-share
    factor = shape.factor if shape.architecture == "gemma3" else 1.0
    return lambda share: position / factor * shape.base**-share


def _turned(shape: Shape, rows: list[float], turn: Callable[[float], float]) -> list[float]:
    """Pairs as complex numbers, turned; neighbours for llama, halves of a head for others."""
    turned, size = list(rows), shape.head_size
    for start in range(0, len(rows), size):
        for pair in range(size // 2):
            angle = turn(2 * pair / size)
            if shape.architecture == "llama":
                first, second = start + 2 * pair, start + 2 * pair + 1
            else:
                first, second = start + pair, start + pair + size // 2
            spun = complex(rows[first], rows[second]) * cmath.exp(1j * angle)
            turned[first], turned[second] = spun.real, spun.imag
    return turned


def _times(part: Mapping[str, Any], name: str, row: list[float]) -> list[float]:
    product = [_dot(weights, row) for weights in part[f"{name}.weight"]]
    bias = part.get(f"{name}.bias")
    return product if bias is None else _sum(product, bias)


def _norm(row: list[float], gain: list[float], epsilon: float) -> list[float]:
    scale = 1 / math.sqrt(_dot(row, row) / len(row) + epsilon)
    return [value * scale * factor for value, factor in zip(row, gain, strict=True)]


def _dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _sum(left: list[float], right: list[float]) -> list[float]:
    return [a + b for a, b in zip(left, right, strict=True)]
