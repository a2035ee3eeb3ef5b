"""The graph of an embedding decoder of the Qwen3 kind (arXiv 2505.09388), built from its weights:
ids to one vector per token; the last one is the text's.

Each layer, with x the state and n a norm by the root of the mean square:

    x = x + out(attention(n(x)))
    x = x + down(silu(gate(n(x))) * up(n(x)))

A token attends to itself and those before it, so padding behind a text affects none of its tokens.
Heads of queries and keys are normed, then turned by their position (RoPE, arXiv 2104.09864);
several heads of queries share one of keys and values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from outrider.engines.embedding import padded_tokens
from outrider.models.embedding import DecoderShape
from outrider.models.embedding_folder import EmbeddingFolder

IDS = "ids"


def embedding_decoder_graph(folder: EmbeddingFolder, shape: DecoderShape) -> Any:
    """Input `ids` [n, s] int32; output [n, s, width]. Raises UnsupportedModelError."""
    return _Builder(folder, shape).model()


class _Builder:
    def __init__(self, folder: EmbeddingFolder, shape: DecoderShape) -> None:
        self._folder = folder
        self._shape = shape

    def model(self) -> Any:
        shape = self._shape
        ids = ops.parameter([-1, -1], np.int32, IDS)
        ids.output(0).get_tensor().set_names({IDS})
        words = self._folder.weights("embed_tokens.weight", (shape.vocabulary_size, shape.width))
        state = ops.gather(ops.constant(words), ids, _integers(0))
        length = ops.gather(ops.shape_of(ids), _integers([1]), _integers(0))
        turns = [
            ops.slice(ops.constant(table), _integers([0]), length, _integers([1]), _integers([2]))
            for table in self._turns()
        ]
        for index in range(shape.num_layers):
            state = self._layer(state, turns, f"layers.{index}.")
        return ov.Model([ops.result(self._normed(state, "norm", shape.width))], [ids], "decoder")

    def _turns(self) -> list[Any]:
        """[1, 1, tokens, head size] cosines and sines of each position's angles."""
        size = self._shape.head_size
        pace = self._shape.rotary_base ** -(np.arange(0, size, 2) / size)
        angles = np.outer(np.arange(padded_tokens(self._folder.facts.max_tokens)), pace)
        whole = np.concatenate([angles, angles], axis=1)[None, None]
        return [turn(whole).astype(np.float32) for turn in (np.cos, np.sin)]

    def _layer(self, state: Any, turns: list[Any], here: str) -> Any:
        shape, width, inner = self._shape, self._shape.width, self._shape.inner_width
        mixed = self._attention(self._normed(state, f"{here}input_layernorm", width), turns, here)
        out = self._dense(mixed, f"{here}self_attn.o_proj", width, shape.queries_width)
        state = ops.add(state, out)
        normed = self._normed(state, f"{here}post_attention_layernorm", width)
        gate = ops.swish(self._dense(normed, f"{here}mlp.gate_proj", inner, width))
        up = self._dense(normed, f"{here}mlp.up_proj", inner, width)
        down = self._dense(ops.multiply(gate, up), f"{here}mlp.down_proj", width, inner)
        return ops.add(state, down)

    def _attention(self, state: Any, turns: list[Any], here: str) -> Any:
        shape = self._shape
        query = self._heads(state, f"{here}self_attn.q", shape.num_heads)
        key = self._heads(state, f"{here}self_attn.k", shape.num_kv_heads)
        value = self._heads(state, f"{here}self_attn.v", shape.num_kv_heads)
        query = self._turned(self._normed(query, f"{here}self_attn.q_norm", shape.head_size), turns)
        key = self._turned(self._normed(key, f"{here}self_attn.k_norm", shape.head_size), turns)
        shared = _integers([i // shape.num_queries for i in range(shape.num_heads)])
        key, value = (ops.gather(it, shared, _integers(1)) for it in (key, value))
        mixed = ops.scaled_dot_product_attention(query, key, value, causal=True)
        flat = ops.transpose(mixed, _integers([0, 2, 1, 3]))
        return ops.reshape(flat, _integers([0, 0, shape.queries_width]), True)

    def _heads(self, state: Any, name: str, num_heads: int) -> Any:
        """[n, heads, s, head size]"""
        size = self._shape.head_size
        rows = self._dense(state, f"{name}_proj", num_heads * size, self._shape.width)
        apart = ops.reshape(rows, _integers([0, 0, num_heads, size]), True)
        return ops.transpose(apart, _integers([0, 2, 1, 3]))

    def _turned(self, heads: Any, turns: list[Any]) -> Any:
        halves = ops.split(heads, _integers(3), 2)
        minus = ops.multiply(halves.output(1), ops.constant(np.float32(-1.0)))
        other = ops.concat([minus, halves.output(0)], 3)
        cosines, sines = turns
        return ops.add(ops.multiply(heads, cosines), ops.multiply(other, sines))

    def _normed(self, state: Any, name: str, width: int) -> Any:
        gain = self._folder.weights(f"{name}.weight", (width,))
        squares = ops.power(state, ops.constant(np.float32(2.0)))
        mean = ops.reduce_mean(squares, _integers([-1]), True)
        root = ops.sqrt(ops.add(mean, ops.constant(np.float32(self._shape.epsilon))))
        inverse = ops.divide(ops.constant(np.float32(1.0)), root)
        return ops.multiply(ops.multiply(state, inverse), ops.constant(gain))

    def _dense(self, state: Any, name: str, num_out: int, num_in: int) -> Any:
        matrix = self._folder.weights(f"{name}.weight", (num_out, num_in))
        return ops.matmul(state, ops.constant(matrix), False, True)


def _integers(values: int | list[int]) -> Any:
    return ops.constant(np.asarray(values, np.int64))
