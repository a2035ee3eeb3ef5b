"""Small random models in GGUF files, and what they say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.models.checkpoints import (
    GEMMA3,
    LLAMA,
    QWEN2,
    QWEN3,
    WHOLE,
    WINDOWED,
    Floats,
    Small,
    logits_of,
)
from tests.models.gguf_files import write_out

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
    own_head_size: int = 0
    """Values of a head; 0: the width, divided among the heads."""

    @property
    def head_size(self) -> int:
        return self.own_head_size or self.width // self.heads

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
    query_width = shape.heads * shape.head_size
    sizes: dict[str, tuple[int, ...]] = {"token_embd.weight": (shape.vocabulary, width)}
    sizes |= {} if tied else {"output.weight": (shape.vocabulary, width)}
    for layer in range(shape.layers):
        for name, rows, columns in (
            ("attn_q", query_width, width),
            ("attn_k", kv_width, width),
            ("attn_v", kv_width, width),
            ("attn_output", width, query_width),
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
    if shape.own_head_size or shape.architecture in ("qwen3", "gemma3"):
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
    write_out(writer)
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


_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
"""Of tensors, as they are published, by their names in a file."""
_NAMES_OF_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_ARCHITECTURES = {"llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3, "gemma3": GEMMA3}


def naive_logits(shape: Shape, tensors: Mapping[str, Floats], ids: Sequence[int]) -> Floats:
    """[n, V] of the tensors as they are published, computed by `tests.models.checkpoints`."""
    is_gemma = shape.architecture == "gemma3"
    names = _NAMES | (_NAMES_OF_GEMMA if is_gemma else {"ffn_norm": "post_attention_layernorm"})
    published = dict[str, Floats]()
    for name, tensor in tensors.items():
        *place, part, kind = name.split(".")
        prefix = f"model.layers.{place[1]}." if place else ""
        if shape.architecture == "llama" and part in ("attn_q", "attn_k"):
            tensor = _halves(shape, tensor)
        if is_gemma and part.endswith("norm"):
            tensor = tensor - np.float32(1)  # the file's have it added
        published[f"{prefix}{names[part]}.{kind}"] = tensor
    kinds = [WINDOWED if shape.has_window(layer) else WHOLE for layer in range(shape.layers)]
    small = Small(
        _ARCHITECTURES[shape.architecture],
        vocabulary=shape.vocabulary,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        layers=shape.layers,
        base=shape.base,
        epsilon=shape.epsilon,
        tied="output.weight" not in tensors,
        layer_types=tuple(kinds),
        window=shape.window,
        window_base=shape.window_base,
        factor=shape.factor if is_gemma else 1.0,
        scalar=shape.head_size,
    )
    scale = math.sqrt(shape.width) if is_gemma else 1.0
    return logits_of(small, published, ids, embedding_scale=scale)


def _halves(shape: Shape, rows: Floats) -> Floats:
    """Rows of heads whose pairs are neighbours, as rows of heads whose pairs are of both halves."""
    pairs = rows.reshape(-1, shape.head_size // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
