"""The stateful graph of a Gemma 3 model.

Each layer, with x the state and every norm a root mean square over a row:

    x = x + norm(attention(norm(x)))            queries and keys normed head by head
    x = x + norm(down(gelu(gate(n)) * up(n)))   with n = norm(x)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from outrider.engines.gguf_decoder.gemma import GemmaFile, GemmaLayer, read_gemma
from outrider.engines.openvino.decoder_graph import (
    DecoderGraph,
    Inputs,
    check_windows,
    integers,
    number,
)
from outrider.models.gguf_file import open_gguf

_Turning: TypeAlias = tuple[float, float]
"""Base and factor."""


def save_gemma(source: Path, graph: Path) -> None:
    """Write the graph of `source`, a GGUF file whose matrices are of Q8_0. Raises
    UnsupportedModelError for a file with a computation that is not supported."""
    reader = open_gguf(source)
    file = read_gemma(reader)
    model = _Builder(file, {tensor.name: tensor for tensor in reader.tensors}).model()
    check_windows(model, [layer.window for layer in file.layers])
    ov.save_model(model, graph, compress_to_fp16=False)


class _Builder(DecoderGraph):
    """Builds the graph of one model."""

    def __init__(self, file: GemmaFile, tensors: dict[str, Any]) -> None:
        super().__init__(file, tensors)
        self._file = file
        self._rotations: dict[_Turning, tuple[Any, Any]] = {}

    def model(self) -> Any:
        """The graph for batches of sequences."""
        layers = self._file.layers
        inputs = Inputs.of({layer.window for layer in layers})
        self._rotations = {key: self._rotation(inputs, *key) for key in map(_turning, layers)}
        scale = number(self._file.embedding_scale, rank=3)
        state = ops.multiply(self.embedded(inputs), scale)
        for index, layer in enumerate(layers):
            state = self._layer(state, index, layer, inputs)
        return self.whole(inputs, state, "gemma3")

    def _layer(self, state: Any, index: int, layer: GemmaLayer, inputs: Inputs) -> Any:
        here = f"blk.{index}."
        mixed = self._attention(self.normed(state, f"{here}attn_norm"), index, layer, inputs)
        state = ops.add(state, self.normed(mixed, f"{here}post_attention_norm"))
        seen = self.normed(state, f"{here}ffn_norm")
        gate = ops.gelu(self.times(seen, f"{here}ffn_gate"), "tanh")
        inner = ops.multiply(gate, self.times(seen, f"{here}ffn_up"))
        down = self.times(inner, f"{here}ffn_down")
        return ops.add(state, self.normed(down, f"{here}post_ffw_norm"))

    def _attention(self, seen: Any, index: int, layer: GemmaLayer, inputs: Inputs) -> Any:
        file, here = self._file, f"blk.{index}."
        rotation = self._rotations[_turning(layer)]
        heads = {}
        for letter, count in (("q", file.heads), ("k", file.kv_heads), ("v", file.kv_heads)):
            product = self.times(seen, f"{here}attn_{letter}")
            rows = self.headwise(product, count)
            if letter != "v":
                rows = self.normed(rows, f"{here}attn_{letter}_norm", rank=4)
            swapped = ops.transpose(rows, integers([0, 2, 1, 3]))
            heads[letter] = swapped if letter == "v" else self.turned(swapped, rotation)
        keys = self.remembered(heads["k"], f"past_key_values.{index}.key", inputs)
        values = self.remembered(heads["v"], f"past_key_values.{index}.value", inputs)
        mixed = ops.scaled_dot_product_attention(
            heads["q"], keys, values, inputs.masks[layer.window], number(file.attention_scale)
        )
        swapped = ops.transpose(mixed, integers([0, 2, 1, 3]))
        flat = ops.reshape(swapped, integers([0, 0, file.heads * file.head_size]), True)
        return self.times(flat, f"{here}attn_output")

    def _rotation(self, inputs: Inputs, base: float, factor: float) -> tuple[Any, Any]:
        size = self._file.head_size
        return self.rotation(inputs, base ** -(np.arange(0, size, 2) / size) / factor)


def _turning(layer: GemmaLayer) -> _Turning:
    return layer.base, layer.factor
