"""The graph of a BERT encoder, built from its weights: ids to one vector a token.

As in the paper (Devlin et al., arXiv 1810.04805), each layer, with x the state:

    x = norm(x + attention(x))
    x = norm(x + down(gelu(up(x))))

Queries, keys and values are one product. RoBERTa has the same graph and counts positions from
another number on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from outrider.engines.embedding import padded_tokens
from outrider.models.embedding import EncoderShape
from outrider.models.embedding_folder import EmbeddingFolder

IDS = "ids"
MASK = "mask"


def encoder_graph(folder: EmbeddingFolder) -> Any:
    """Inputs `ids` [n, s] int32 and `mask` [n, s] float32, which is added to attention's scores: 0
    for a token, minus infinity for padding; output [n, s, width]. Raises UnsupportedModelError."""
    return _Builder(folder).model()


class _Builder:
    def __init__(self, folder: EmbeddingFolder) -> None:
        assert isinstance(folder.facts.shape, EncoderShape), "a decoder has another graph"
        self._folder = folder
        self._shape = folder.facts.shape

    def model(self) -> Any:
        ids = _parameter(IDS, np.int32)
        mask = _parameter(MASK, np.float32)
        seen = ops.unsqueeze(mask, _integers([1, 2]))
        state = self._embedded(ids)
        for index in range(self._shape.num_layers):
            state = self._layer(state, seen, f"encoder.layer.{index}.")
        return ov.Model([ops.result(state)], [ids, mask], "encoder")

    def _embedded(self, ids: Any) -> Any:
        shape, begin = self._shape, self._shape.first_position
        words = self._weights("embeddings.word_embeddings", shape.vocabulary_size, shape.width)
        places = self._weights("embeddings.position_embeddings", shape.num_positions, shape.width)
        kinds = self._kinds()
        chosen = ops.gather(ops.constant(words), ids, _integers(0))
        length = ops.gather(ops.shape_of(ids), _integers([1]), _integers(0))
        # The kind of all tokens is the first: there is one text, and no second one.
        placed = np.ascontiguousarray(places[None, begin:] + kinds[0])
        # Rows for the padding of the longest text, where the model has no positions of its own.
        beyond = max(0, padded_tokens(self._folder.facts.max_tokens) - placed.shape[1])
        placed = np.pad(placed, ((0, 0), (0, beyond), (0, 0)))
        places_here = ops.slice(
            ops.constant(placed), _integers([0]), length, _integers([1]), _integers([1])
        )
        return self._normed(ops.add(chosen, places_here), "embeddings.LayerNorm")

    def _kinds(self) -> Any:
        name = "embeddings.token_type_embeddings.weight"
        for count in (2, 1):
            if self._folder.has(name, (count, self._shape.width)):
                return self._folder.weights(name, (count, self._shape.width))
        return np.zeros((1, self._shape.width), np.float32)

    def _layer(self, state: Any, seen: Any, here: str) -> Any:
        shape = self._shape
        mixed = self._attention(state, seen, here)
        output = self._dense(mixed, f"{here}attention.output.dense", shape.width, shape.width)
        state = self._normed(ops.add(output, state), f"{here}attention.output.LayerNorm")
        inner = self._dense(state, f"{here}intermediate.dense", shape.inner_width, shape.width)
        active = ops.gelu(inner, "erf")
        down = self._dense(active, f"{here}output.dense", shape.width, shape.inner_width)
        return self._normed(ops.add(down, state), f"{here}output.LayerNorm")

    def _attention(self, state: Any, seen: Any, here: str) -> Any:
        shape = self._shape
        names = [f"{here}attention.self.{part}" for part in ("query", "key", "value")]
        weights = np.concatenate([self._weights(it, shape.width, shape.width) for it in names])
        biases = np.concatenate([self._bias(it, shape.width) for it in names])
        product = ops.matmul(state, ops.constant(weights), False, True)
        biased = ops.add(product, ops.constant(biases.reshape(1, 1, -1)))
        parts = [0, 0, 3, shape.num_heads, shape.head_size]
        apart = ops.transpose(
            ops.reshape(biased, _integers(parts), True), _integers([2, 0, 3, 1, 4])
        )
        query, key, value = (ops.gather(apart, _integers(i), _integers(0)) for i in range(3))
        scale = ops.constant(np.float32(shape.head_size**-0.5))
        mixed = ops.scaled_dot_product_attention(query, key, value, seen, scale)
        flat = ops.transpose(mixed, _integers([0, 2, 1, 3]))
        return ops.reshape(flat, _integers([0, 0, shape.width]), True)

    def _dense(self, state: Any, name: str, num_out: int, num_in: int) -> Any:
        matrix = ops.constant(self._weights(name, num_out, num_in))
        bias = ops.constant(self._bias(name, num_out).reshape(1, 1, -1))
        return ops.add(ops.matmul(state, matrix, False, True), bias)

    def _normed(self, state: Any, name: str) -> Any:
        width = self._shape.width
        gain = self._folder.weights(f"{name}.weight", (width,)).reshape(1, 1, -1)
        shift = self._folder.weights(f"{name}.bias", (width,)).reshape(1, 1, -1)
        centred = ops.mvn(state, _integers([2]), True, self._shape.epsilon, "inside_sqrt")
        return ops.add(ops.multiply(centred, ops.constant(gain)), ops.constant(shift))

    def _weights(self, name: str, rows: int, columns: int) -> Any:
        return self._folder.weights(f"{name}.weight", (rows, columns))

    def _bias(self, name: str, size: int) -> Any:
        return self._folder.weights(f"{name}.bias", (size,))


def _parameter(name: str, kind: Any) -> Any:
    made = ops.parameter([-1, -1], kind, name)
    made.output(0).get_tensor().set_names({name})
    return made


def _integers(values: int | list[int]) -> Any:
    return ops.constant(np.asarray(values, np.int64))
