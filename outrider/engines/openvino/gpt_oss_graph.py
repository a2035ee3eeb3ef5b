"""The stateful graph of a gpt-oss model.

Each layer, with x the state and every norm a root mean square over a row:

    x = x + attention(norm(x))        with biases, a window in every second layer, and a learned
                                      sink for each head, which takes its share of the weights
    x = x + sum(w_e * expert_e(n))    with n = norm(x), over the experts e with the largest scores,
                                      w the softmax of their scores

    expert(n) = down(min(g, 7) * sigmoid(1.702 * min(g, 7)) * (clip(u, -7, 7) + 1))
                                      with g = gate(n), u = up(n)

Every row goes through every expert, and those that were not chosen count nothing: rows then do not
depend on each other, for the price of the experts that are not needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from gguf import dequantize
from openvino.utils.node_factory import NodeFactory

from outrider.engines.gguf_decoder.gpt_oss import GptOssFile, read_gpt_oss
from outrider.engines.openvino.decoder_graph import (
    DecoderGraph,
    Inputs,
    check_windows,
    integers,
    number,
)
from outrider.models.gguf_file import open_gguf

_SHARPNESS: Final = 1.702
_LIMIT: Final = 7.0
"""Of the gated unit."""


def save_gpt_oss(source: Path, graph: Path) -> None:
    """Write the graph of `source`, a GGUF file whose matrices are of Q8_0. Raises
    UnsupportedModelError for a file with a computation that is not supported."""
    reader = open_gguf(source)
    file = read_gpt_oss(reader)
    model = _Builder(file, {tensor.name: tensor for tensor in reader.tensors}).model()
    check_windows(model, file.windows)
    ov.save_model(model, graph, compress_to_fp16=False)


class _Builder(DecoderGraph):
    """Builds the graph of one model."""

    def __init__(self, file: GptOssFile, tensors: dict[str, Any]) -> None:
        super().__init__(file, tensors)
        self._file = file
        self._nodes = NodeFactory("opset13")

    def model(self) -> Any:
        """The graph for batches of sequences."""
        inputs = Inputs.of(set(self._file.windows))
        rotation = self.rotation(inputs, self._file.frequencies, self._file.amplitude)
        state = self.embedded(inputs)
        for index, window in enumerate(self._file.windows):
            here = f"blk.{index}."
            seen = self.normed(state, f"{here}attn_norm")
            state = ops.add(
                state, self._attention(seen, index, inputs.masks[window], rotation, inputs)
            )
            seen = self.normed(state, f"{here}post_attention_norm")
            state = ops.add(state, self._experts(seen, here))
        return self.whole(inputs, state, "gpt-oss")

    def _attention(
        self, seen: Any, index: int, mask: Any, rotation: tuple[Any, Any], inputs: Inputs
    ) -> Any:
        file, here = self._file, f"blk.{index}."
        heads = {}
        for letter, count in (("q", file.heads), ("k", file.kv_heads), ("v", file.kv_heads)):
            rows = self.headwise(self._linear(seen, f"{here}attn_{letter}"), count)
            swapped = ops.transpose(rows, integers([0, 2, 1, 3]))
            heads[letter] = swapped if letter == "v" else self.turned(swapped, rotation)
        keys = self.remembered(heads["k"], f"past_key_values.{index}.key", inputs)
        values = self.remembered(heads["v"], f"past_key_values.{index}.value", inputs)
        sinks = ops.constant(self._vector(f"{here}attn_sinks.weight").reshape(1, -1, 1, 1))
        scale = number(file.head_size**-0.5)
        parts = [heads["q"], keys, values, mask, scale, sinks]
        # The library's own function for it has no sinks.
        mixed = self._nodes.create(
            "ScaledDotProductAttention", [it.output(0) for it in parts], {"causal": False}
        )
        swapped = ops.transpose(mixed, integers([0, 2, 1, 3]))
        flat = ops.reshape(swapped, integers([0, 0, file.heads * file.head_size]), True)
        return self._linear(flat, f"{here}attn_output")

    def _experts(self, seen: Any, here: str) -> Any:
        file = self._file
        router = ops.constant(self._vector(f"{here}ffn_gate_inp.weight"))
        bias = self._vector(f"{here}ffn_gate_inp.bias").reshape(1, 1, -1)
        scores = ops.add(ops.matmul(seen, router, False, True), ops.constant(bias))
        best = ops.topk(scores, integers(file.chosen), -1, "max", "value", "i64")
        shares = ops.unsqueeze(ops.softmax(best.output(0), -1), integers(-1))
        one, none = number(1.0), number(0.0)
        places = ops.one_hot(best.output(1), integers(file.experts), one, none, -1)
        # [batch, tokens, experts]: the shares of those that were chosen, else 0.
        weights = ops.reduce_sum(ops.multiply(places, shares), integers([-2]), False)
        apart = ops.split(weights, integers(-1), file.experts)
        mixed = None
        for expert in range(file.experts):
            output = ops.multiply(self._expert(seen, here, expert), apart.output(expert))
            mixed = output if mixed is None else ops.add(mixed, output)
        return mixed

    def _expert(self, seen: Any, here: str, expert: int) -> Any:
        gate, up = (self._linear(seen, f"{here}ffn_{part}_exps", expert) for part in ("gate", "up"))
        gate = ops.minimum(gate, number(_LIMIT, rank=3))
        open_by = ops.sigmoid(ops.multiply(gate, number(_SHARPNESS, rank=3)))
        up = ops.add(ops.clamp(up, -_LIMIT, _LIMIT), number(1.0, rank=3))
        inner = ops.multiply(ops.multiply(gate, open_by), up)
        return self._linear(inner, f"{here}ffn_down_exps", expert)

    def _linear(self, rows: Any, name: str, expert: int | None = None) -> Any:
        """A product and its bias; of one expert where there are several."""
        bias = self._vector(f"{name}.bias")
        own = bias if expert is None else bias[expert]
        product = self.times(rows, name, expert)
        return ops.add(product, ops.constant(own.reshape(1, 1, -1)))

    def _vector(self, name: str) -> Any:
        tensor = self.need(name)
        return np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
