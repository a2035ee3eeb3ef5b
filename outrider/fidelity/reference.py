"""Reference logits of a model file: a forward pass in f32 on its dequantised tensors, with numpy.

Independent of every engine: nothing here knows OpenVINO, and an engine imports nothing from here.
Tensor names are those of ggml's docs/gguf.md; the arithmetic is that of the Llama family (RMSNorm,
rotary positions, grouped queries, gated feed-forward; rules.py has the differences). With 135
million weights one core computes 7 ms a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import gguf
import numpy as np
import numpy.typing as npt

from outrider.errors import UnsupportedModelError
from outrider.fidelity.rules import GEMMA3, LayerRule, rules_of
from outrider.models.gguf_file import open_gguf

Floats: TypeAlias = npt.NDArray[np.float32]
Ids: TypeAlias = npt.NDArray[np.int32]

_INTERLEAVED: Final = {"llama": True, "qwen2": False, "qwen3": False, GEMMA3: False}
"""Known architectures, and whether a rotation turns neighbours (2i, 2i + 1) or, as in NeoX, the
halves of a head (i, i + size / 2). llama's rows of queries and keys are stored for the former."""


class Reference:
    """One model file. Weights are dequantised a layer at a time, so that models of several times
    the memory's size in f32 can be read; only the head is kept."""

    def __init__(self, path: Path) -> None:
        """Raises ArtifactCorruptError for a file that is no GGUF, UnsupportedModelError for one of
        an architecture that is not known, or with parts that would be left out."""
        reader = open_gguf(path)
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._architecture = str(self._field("general.architecture"))
        if self._architecture not in _INTERLEAVED:
            raise UnsupportedModelError(
                f"the reference knows no architecture {self._architecture!r}; it knows "
                f"{', '.join(_INTERLEAVED)}"
            )
        self._num_layers = int(self._of("block_count"))
        self._width = int(self._of("embedding_length"))
        self._num_heads = int(self._of("attention.head_count"))
        self._num_kv_heads = int(self._of("attention.head_count_kv", self._num_heads))
        self._head_size = int(self._of("attention.key_length", self._width // self._num_heads))
        self._epsilon = np.float32(self._of("attention.layer_norm_rms_epsilon"))
        self._rules = rules_of(
            self._architecture,
            self._of,
            num_layers=self._num_layers,
            width=self._width,
            num_heads=self._num_heads,
            head_size=self._head_size,
        )
        self._check_nothing_is_left_out()

    @property
    def num_layers(self) -> int:
        return self._num_layers

    def states(
        self, documents: Sequence[Ids], on_layer: Callable[[int], None] = lambda _: None
    ) -> list[Floats]:
        """[n, width] for each document of n ids: the head's input at its positions.

        `on_layer` gets the number of layers done, 1 to num_layers. The longest document needs 4 n^2
        bytes a head.
        """
        states = [self._embedded(ids) for ids in documents]
        for index, rule in enumerate(self._rules.layers):
            layer = self._layer(index)
            states = [self._through(layer, rule, state) for state in states]
            on_layer(index + 1)
        gain = self._tensor("output_norm.weight")
        return [self._normed(state, gain) for state in states]

    def logits(self, states: Floats) -> Floats:
        """[n, V] of [n, width] states."""
        return np.asarray(states @ self._head.T, np.float32)

    @cached_property
    def _head(self) -> Floats:
        tied = "output.weight" not in self._tensors
        return self._tensor("token_embd.weight" if tied else "output.weight")

    def _embedded(self, ids: Ids) -> Floats:
        tensor = self._need("token_embd.weight")
        scale = np.float32(self._rules.embedding_scale)
        return _dequantised(tensor.data[ids], tensor.tensor_type) * scale

    def _layer(self, index: int) -> dict[str, Floats]:
        """Tensors of a layer, by the part of their names behind `blk.N.`."""
        prefix = f"blk.{index}."
        names = [name for name in self._tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._tensor(name) for name in names}

    def _through(self, layer: dict[str, Floats], rule: LayerRule, state: Floats) -> Floats:
        normed = self._normed(state, layer["attn_norm.weight"])
        mixed = _product(layer, "attn_output", self._attention(layer, rule, normed))
        state = state + self._normed_again(layer, "post_attention_norm", mixed)
        normed = self._normed(state, layer["ffn_norm.weight"])
        gate, up = _product(layer, "ffn_gate", normed), _product(layer, "ffn_up", normed)
        opened = _gelu(gate) if self._rules.has_gelu else _silu(gate)
        down = _product(layer, "ffn_down", opened * up)
        return state + self._normed_again(layer, "post_ffw_norm", down)

    def _normed_again(self, layer: dict[str, Floats], name: str, rows: Floats) -> Floats:
        """Normed where the file has a gain for that (gemma3)."""
        gain = layer.get(f"{name}.weight")
        return rows if gain is None else self._normed(rows, gain)

    def _attention(self, layer: dict[str, Floats], rule: LayerRule, normed: Floats) -> Floats:
        """[n, heads * head size]; each position sees itself and those before, or a window."""
        length = len(normed)
        size = self._head_size
        rotation = self._rotation(length, rule)
        queries = self._rotated(self._headwise(layer, "attn_q", normed), rotation)
        keys = self._rotated(self._headwise(layer, "attn_k", normed), rotation)
        values = _product(layer, "attn_v", normed).reshape(length, -1, size).swapaxes(0, 1)
        shared = self._num_heads // self._num_kv_heads
        # [kv heads, queries that share it, n, size] against [kv heads, 1, n, size]
        queries = queries.reshape(self._num_kv_heads, shared, length, size)
        scores = queries @ keys[:, None].swapaxes(2, 3) * np.float32(self._rules.attention_scale)
        seen = np.tri(length, dtype=bool)
        if rule.window:
            seen &= ~np.tri(length, k=-rule.window, dtype=bool)
        scores[..., ~seen] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        mixed = (scores @ values[:, None]).reshape(self._num_heads, length, size)
        return np.asarray(mixed.swapaxes(0, 1).reshape(length, -1), np.float32)

    def _headwise(self, layer: dict[str, Floats], name: str, normed: Floats) -> Floats:
        """[n, heads * size] a product, each head of which is normed if the file has a gain for it
        (qwen3, gemma3)."""
        rows = _product(layer, name, normed)
        gain = layer.get(f"{name}_norm.weight")
        if gain is None:
            return rows
        heads = rows.reshape(len(rows), -1, self._head_size)
        return self._normed(heads, gain).reshape(rows.shape)

    def _rotated(self, rows: Floats, rotation: Floats) -> Floats:
        """[n, heads * size] as [heads, n, size], each pair turned by its position's angle."""
        heads = rows.reshape(len(rows), -1, self._head_size).swapaxes(0, 1)
        cosine, sine = rotation
        turned, rest = np.split(heads, [2 * cosine.shape[-1]], axis=2)
        if _INTERLEAVED[self._architecture]:
            first, second = turned[..., 0::2], turned[..., 1::2]
        else:
            first, second = np.split(turned, 2, axis=2)
        pairs = (first * cosine - second * sine, first * sine + second * cosine)
        if _INTERLEAVED[self._architecture]:
            turned = np.stack(pairs, axis=3).reshape(turned.shape)
        else:
            turned = np.concatenate(pairs, axis=2)
        return np.concatenate([turned, rest], axis=2)

    def _rotation(self, length: int, rule: LayerRule) -> Floats:
        """[2, n, pairs]: cosine and sine of each position's angles."""
        angles = np.arange(length)[:, None] * self._rotary_frequencies(rule)
        return np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)

    def _rotary_frequencies(self, rule: LayerRule) -> npt.NDArray[np.float64]:
        """[pairs] radians a position."""
        size = int(self._of("rope.dimension_count", self._head_size))
        frequencies = rule.base ** -(np.arange(0, size, 2) / size) / rule.factor
        if "rope_freqs.weight" in self._tensors:
            frequencies = frequencies / self._tensor("rope_freqs.weight")
        return np.asarray(frequencies, np.float64)

    def _normed(self, state: Floats, gain: Floats) -> Floats:
        power = np.mean(state * state, axis=-1, keepdims=True)
        return np.asarray(state / np.sqrt(power + self._epsilon) * gain, np.float32)

    def _check_nothing_is_left_out(self) -> None:
        """A tensor that this pass would not use means another computation than ours."""
        known = {"token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight"}
        parts = {f"{name}.weight" for name in (*_NORMS, *_PRODUCTS)}
        parts |= {f"{name}.bias" for name in _PRODUCTS}
        known |= {f"blk.{index}.{part}" for index in range(self._num_layers) for part in parts}
        needed = {"token_embd.weight", "output_norm.weight"}
        own = _OWN_NORMS.get(self._architecture, ())
        needed |= {
            f"blk.{index}.{name}.weight"
            for index in range(self._num_layers)
            for name in (*_NORMS, *_PRODUCTS, *own)
        }
        known |= needed
        strange = self._tensors.keys() - known
        missing = needed - self._tensors.keys()
        if strange or missing:
            what = f"has {min(strange)}" if strange else f"lacks {min(missing)}"
            raise UnsupportedModelError(
                f"the model file {what}: no {self._architecture} model that the reference knows"
            )

    def _tensor(self, name: str) -> Floats:
        tensor = self._need(name)
        return _dequantised(tensor.data, tensor.tensor_type)

    def _need(self, name: str) -> Any:
        try:
            return self._tensors[name]
        except KeyError:
            raise UnsupportedModelError(f"the model file lacks {name}") from None

    def _of(self, name: str, default: Any = None) -> Any:
        """A field of the architecture's own."""
        return self._field(f"{self._architecture}.{name}", default)

    def _field(self, name: str, default: Any = None) -> Any:
        field = self._fields.get(name)
        if field is None and default is None:
            raise UnsupportedModelError(f"the model file lacks {name}; use a complete GGUF file")
        return default if field is None else field.contents()


_NORMS: Final = ("attn_norm", "ffn_norm")
_HEAD_NORMS: Final = ("attn_q_norm", "attn_k_norm")
_OWN_NORMS: Final = {
    "qwen3": _HEAD_NORMS,
    GEMMA3: (*_HEAD_NORMS, "post_attention_norm", "post_ffw_norm"),
}
_PRODUCTS: Final = (
    *("attn_q", "attn_k", "attn_v", "attn_output"),
    *("ffn_gate", "ffn_up", "ffn_down"),
)


def _product(layer: dict[str, Floats], name: str, rows: Floats) -> Floats:
    """[n, out] of [n, in], with a bias where the file has one."""
    product = rows @ layer[f"{name}.weight"].T
    bias = layer.get(f"{name}.bias")
    return product if bias is None else product + bias


def _silu(gate: Floats) -> Floats:
    """x * sigmoid(x), written so that nothing overflows."""
    half = np.float32(0.5)
    return np.asarray(half * gate * (1 + np.tanh(half * gate)), np.float32)


def _gelu(gate: Floats) -> Floats:
    """Half of x * (1 + tanh(...)), the form that Gemma is trained with."""
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return np.asarray(0.5 * gate * (1 + np.tanh(inner)), np.float32)


def _dequantised(data: npt.NDArray[Any], kind: gguf.GGMLQuantizationType) -> Floats:
    try:
        return np.asarray(gguf.dequantize(data, kind), np.float32)
    except NotImplementedError as error:
        raise UnsupportedModelError(f"the model file has weights of {kind.name}: {error}") from None
