"""The stateful graph of a Gemma 3 model, which openvino_genai's converter does not build.

Built from the copy of a file in Q8_0, and written as the converter writes its graphs: products,
norms, rotary positions and the state in the forms that the CPU plugin and the transformation to
paged attention recognise. That one reads the window of a layer off the form of its mask
(`_window_mask`), so `check_windows` tries whether it did.

Each layer, with x the state and every norm a root mean square over a row:

    x = x + norm(attention(norm(x)))            queries and keys normed head by head
    x = x + norm(down(gelu(gate(n)) * up(n)))   with n = norm(x)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset13 as ops
from gguf import GGMLQuantizationType, dequantize
from openvino._offline_transformations import paged_attention_transformation
from openvino.passes import ConstantFolding, Manager

from outrider.engines.gguf_decoder.gemma import GemmaFile, GemmaLayer, read_gemma
from outrider.errors import EngineError, UnsupportedModelError
from outrider.models.gguf_file import open_gguf

_BLOCK: Final = 32
"""Values of a block of Q8_0, behind a scale of two bytes."""
_CENTRE: Final = 128
_SLIDING_WINDOW: Final = 10
"""Input of PagedAttentionExtension: tokens that a token sees, 0 for all."""


def save_gemma(source: Path, graph: Path) -> None:
    """Write the graph of `source`, a GGUF file whose matrices are of Q8_0. Raises
    UnsupportedModelError for a file with a computation that is not supported."""
    reader = open_gguf(source)
    file = read_gemma(reader)
    model = _Builder(file, {tensor.name: tensor for tensor in reader.tensors}).model()
    check_windows(model, file)
    ov.save_model(model, graph, compress_to_fp16=False)


def check_windows(model: Any, file: GemmaFile) -> None:
    """Raises EngineError unless paged attention sees the window of each layer."""
    paged = model.clone()
    paged_attention_transformation(paged)
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(paged)
    attention = [op for op in paged.get_ordered_ops() if op.get_type_name().startswith("PagedAtt")]
    found = [int(op.input_value(_SLIDING_WINDOW).get_node().get_data()) for op in attention]
    if found != [layer.window for layer in file.layers]:
        raise EngineError(
            f"OpenVINO {ov.__version__} does not take the windows of this model's layers; serve "
            "another model, or install OpenVINO 2026.4.1, with which it does"
        )


@dataclass(frozen=True)
class _Inputs:
    """Nodes shared by all layers."""

    beam: Any
    batch: Any
    """[1] sequences of a call."""
    masks: dict[int, Any]
    """By window."""
    rotations: dict[tuple[float, float], tuple[Any, Any]]
    """Cosine and sine, by base and factor."""


class _Builder:
    """Builds the graph of one model."""

    def __init__(self, file: GemmaFile, tensors: dict[str, Any]) -> None:
        self._file = file
        self._tensors = tensors
        self._sinks: list[Any] = []

    def model(self) -> Any:
        """The graph for batches of sequences, with the inputs of the converter's graphs."""
        ids = _parameter("input_ids", [-1, -1], np.int64)
        attended = _parameter("attention_mask", [-1, -1], np.int64)
        positions = _parameter("position_ids", [-1, -1], np.int64)
        beam = _parameter("beam_idx", [-1], np.int32)
        layers = self._file.layers
        inputs = _Inputs(
            beam,
            ops.gather(ops.shape_of(ids), _integers([0]), _integers(0)),
            _masks(ids, attended, {layer.window for layer in layers}),
            {key: self._rotation(ids, positions, *key) for key in map(_turning, layers)},
        )
        chosen = ops.gather(self._embedding, ops.convert(ids, "i32"), _integers(0))
        state = ops.multiply(chosen, _number(self._file.embedding_scale, rank=3))
        for index, layer in enumerate(layers):
            state = self._layer(state, index, layer, inputs)
        head = self._head
        logits = ops.matmul(self._normed(state, "output_norm"), head, False, True)
        result = ops.result(logits)
        result.output(0).get_tensor().set_names({"logits"})
        result.set_friendly_name("logits")
        return ov.Model([result], self._sinks, [ids, attended, positions, beam], "gemma3")

    def _layer(self, state: Any, index: int, layer: GemmaLayer, inputs: _Inputs) -> Any:
        here = f"blk.{index}."
        mixed = self._attention(self._normed(state, f"{here}attn_norm"), index, layer, inputs)
        state = ops.add(state, self._normed(mixed, f"{here}post_attention_norm"))
        seen = self._normed(state, f"{here}ffn_norm")
        gate = ops.gelu(self._times(seen, f"{here}ffn_gate"), "tanh")
        inner = ops.multiply(gate, self._times(seen, f"{here}ffn_up"))
        down = self._times(inner, f"{here}ffn_down")
        return ops.add(state, self._normed(down, f"{here}post_ffw_norm"))

    def _attention(self, seen: Any, index: int, layer: GemmaLayer, inputs: _Inputs) -> Any:
        file, here = self._file, f"blk.{index}."
        rotation = inputs.rotations[_turning(layer)]
        heads = {}
        for letter, count in (("q", file.heads), ("k", file.kv_heads), ("v", file.kv_heads)):
            product = self._times(seen, f"{here}attn_{letter}")
            rows = ops.reshape(product, _integers([0, 0, count, file.head_size]), True)
            if letter != "v":
                rows = self._normed(rows, f"{here}attn_{letter}_norm", rank=4)
            swapped = ops.transpose(rows, _integers([0, 2, 1, 3]))
            heads[letter] = swapped if letter == "v" else self._turned(swapped, rotation)
        keys = self._remembered(heads["k"], f"past_key_values.{index}.key", inputs)
        values = self._remembered(heads["v"], f"past_key_values.{index}.value", inputs)
        mixed = ops.scaled_dot_product_attention(
            heads["q"], keys, values, inputs.masks[layer.window], _number(file.attention_scale)
        )
        swapped = ops.transpose(mixed, _integers([0, 2, 1, 3]))
        flat = ops.reshape(swapped, _integers([0, 0, file.heads * file.head_size]), True)
        return self._times(flat, f"{here}attn_output")

    def _remembered(self, rows: Any, name: str, inputs: _Inputs) -> Any:
        """All keys or values so far, for each head of queries."""
        file = self._file
        shape = [-1, file.kv_heads, -1, file.head_size]
        sizes = [_integers([length]) for length in (file.kv_heads, 0, file.head_size)]
        empty = ops.broadcast(_number(0.0), ops.concat([inputs.batch, *sizes], 0))
        past = ops.read_value(empty, name, ov.Type.f32, ov.PartialShape(shape))
        # Beams are lines of the batch.
        past = ops.gather(past, inputs.beam, _integers(0))
        whole = ops.concat([past, rows], 2)
        self._sinks.append(ops.assign(whole, name))
        shared = file.heads // file.kv_heads
        if shared == 1:
            return whole
        apart, shape = ops.unsqueeze(whole, _integers(2)), _integers([1, 1, shared, 1, 1])
        spread = ops.broadcast(apart, shape, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(spread, _integers([0, file.heads, -1, file.head_size]), True)

    def _rotation(self, ids: Any, positions: Any, base: float, factor: float) -> tuple[Any, Any]:
        """[batch, 1, tokens, head size] each; pairs are halves of a head."""
        size = self._file.head_size
        frequencies = base ** -(np.arange(0, size, 2) / size) / factor
        constant = ops.constant(frequencies.astype(np.float32).reshape(1, -1, 1))
        batch = ops.gather(ops.shape_of(ids), _integers([0]), _integers(0))
        shape = ops.concat([batch, _integers([1]), _integers([1])], 0)
        repeated = ops.broadcast(constant, shape, broadcast_spec="BIDIRECTIONAL")
        row = ops.convert(ops.unsqueeze(positions, _integers(1)), "f32")
        angles = ops.transpose(ops.matmul(repeated, row, False, False), _integers([0, 2, 1]))
        whole = ops.concat([angles, angles], -1)
        return ops.unsqueeze(ops.cos(whole), _integers(1)), ops.unsqueeze(
            ops.sin(whole), _integers(1)
        )

    def _turned(self, rows: Any, rotation: tuple[Any, Any]) -> Any:
        cosine, sine = rotation
        half, last = self._file.head_size // 2, self._file.head_size
        axis, one = _integers([3]), _integers([1])
        first = ops.slice(rows, _integers([0]), _integers([half]), one, axis)
        second = ops.slice(rows, _integers([half]), _integers([last]), one, axis)
        swapped = ops.concat([ops.multiply(second, _number(-1.0, rank=4)), first], -1)
        return ops.add(ops.multiply(rows, cosine), ops.multiply(swapped, sine))

    def _normed(self, rows: Any, name: str, rank: int = 3) -> Any:
        """Rows over the root of their mean square, times the file's gain, which has the 1 of
        Gemma's (1 + weight) in it."""
        tensor = self._need(f"{name}.weight")
        gain = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        squares = ops.reduce_mean(ops.power(rows, _number(2.0, rank)), _integers([-1]), True)
        root = ops.sqrt(ops.add(squares, _number(self._file.epsilon, rank)))
        scaled = ops.multiply(ops.divide(_number(1.0, rank), root), rows)
        return ops.multiply(scaled, ops.constant(gain.reshape([1] * (rank - 1) + [-1])))

    def _times(self, rows: Any, name: str) -> Any:
        return ops.matmul(rows, self._matrix(f"{name}.weight"), False, True)

    @cached_property
    def _embedding(self) -> Any:
        return self._matrix("token_embd.weight")

    @property
    def _head(self) -> Any:
        own = "output.weight"
        return self._matrix(own) if own in self._tensors else self._embedding

    def _matrix(self, name: str) -> Any:
        """[rows, columns] as the converter writes Q8_0: bytes around 128, an f16 for 32 of them."""
        tensor = self._need(name)
        if tensor.tensor_type != GGMLQuantizationType.Q8_0:
            raise EngineError(f"{name} is of {tensor.tensor_type.name}, not of Q8_0")
        blocks: npt.NDArray[np.uint8] = np.asarray(tensor.data).reshape(
            int(tensor.shape[1]), -1, _BLOCK + 2
        )
        scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)
        values = np.ascontiguousarray(blocks[..., 2:] ^ _CENTRE)
        centres = np.full(scales.shape, _CENTRE, np.uint8)
        shifted = ops.subtract(
            ops.convert(ops.constant(values), "f16"), ops.convert(ops.constant(centres), "f16")
        )
        scaled = ops.multiply(shifted, ops.constant(scales))
        shape = _integers([values.shape[0], values.shape[1] * _BLOCK])
        return ops.convert(ops.reshape(scaled, shape, False), "f32")

    def _need(self, name: str) -> Any:
        try:
            return self._tensors[name]
        except KeyError:
            raise UnsupportedModelError(
                f"the model file lacks {name}; use a complete GGUF file"
            ) from None


def _masks(ids: Any, attended: Any, windows: set[int]) -> dict[int, Any]:
    """[batch, 1, tokens, all tokens] by window: 0 where a token sees another, else -infinity."""
    new, total = _length(ids), _length(attended)
    zero, one = _integers(0), _integers(1)
    keys = ops.unsqueeze(ops.range(zero, total, one, "i64"), _integers([0, 1, 2]))
    queries = ops.unsqueeze(
        ops.range(ops.subtract(total, new), total, one, "i64"), _integers([0, 1, 3])
    )
    there = ops.unsqueeze(ops.not_equal(attended, zero), _integers([1, 2]))
    before = ops.less_equal(keys, queries)
    batch = ops.gather(ops.shape_of(ids), _integers([0]), zero)
    lengths = [ops.unsqueeze(length, zero) for length in (new, total)]
    shape = ops.concat([batch, _integers([1]), *lengths], 0)
    return {
        window: _window_mask(keys, queries, window, before, there, shape, lengths[1])
        if window
        else _mask(ops.logical_and(before, there), shape)
        for window in windows
    }


def _window_mask(
    keys: Any, queries: Any, window: int, before: Any, there: Any, shape: Any, total: Any
) -> Any:
    """The mask of a window, in the form that OpenVINO recognises for gpt-oss: it takes the window
    from the constant added to the queries' positions, and needs every node around it."""
    anything = ops.constant(np.array(True))
    near = ops.greater(keys, ops.add(queries, _integers(-window)))
    seen = ops.bitwise_and(anything, near)
    seen = ops.bitwise_and(seen, before)
    seen = ops.bitwise_and(anything, seen)
    mask = _mask(ops.bitwise_and(seen, there), shape)
    return ops.slice(mask, _integers([0]), total, _integers([1]), _integers([3]))


def _mask(seen: Any, shape: Any) -> Any:
    return ops.select(ops.broadcast(seen, shape), _number(0.0), _number(-np.inf))


def _turning(layer: GemmaLayer) -> tuple[float, float]:
    return layer.base, layer.factor


def _length(ids: Any) -> Any:
    """Length of the lines of a batch."""
    return ops.gather(ops.shape_of(ids), _integers(1), _integers(0))


def _parameter(name: str, shape: list[int], dtype: type[np.generic]) -> Any:
    parameter = ops.parameter(ov.PartialShape(shape), dtype, name=name)
    parameter.output(0).set_names({name})
    return parameter


def _integers(values: int | list[int]) -> Any:
    return ops.constant(np.array(values, np.int64))


def _number(value: float, rank: int = 0) -> Any:
    return ops.constant(np.full([1] * rank, value, np.float32))
