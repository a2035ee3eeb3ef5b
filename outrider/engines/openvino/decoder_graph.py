"""Parts of the stateful graph of a decoder, for architectures that openvino_genai's converter does
not build.

Built from the copy of a file in Q8_0, and written as the converter writes its graphs: products,
norms, rotary positions and the state in the forms that the CPU plugin and the transformation to
paged attention recognise. That one reads the window of a layer off the form of its mask
(`_window_mask`), so `check_windows` tries whether it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset13 as ops
from gguf import GGMLQuantizationType, dequantize
from openvino._offline_transformations import paged_attention_transformation
from openvino.passes import ConstantFolding, Manager

from outrider.errors import EngineError, UnsupportedModelError

_BLOCK: Final = 32
"""Values of a block of Q8_0, behind a scale of two bytes."""
_CENTRE: Final = 128
_SLIDING_WINDOW: Final = 10
"""Input of PagedAttentionExtension: tokens that a token sees, 0 for all."""


class Sizes(Protocol):
    """Of a model's attention and norms."""

    @property
    def heads(self) -> int: ...

    @property
    def kv_heads(self) -> int: ...

    @property
    def head_size(self) -> int: ...

    @property
    def epsilon(self) -> float:
        """Added to mean squares."""


def check_windows(model: Any, windows: Sequence[int]) -> None:
    """Raises EngineError unless paged attention sees the window of each layer."""
    paged = model.clone()
    paged_attention_transformation(paged)
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(paged)
    attention = [op for op in paged.get_ordered_ops() if op.get_type_name().startswith("PagedAtt")]
    found = [int(op.input_value(_SLIDING_WINDOW).get_node().get_data()) for op in attention]
    if found != list(windows):
        raise EngineError(
            f"OpenVINO {ov.__version__} does not take the windows of this model's layers; serve "
            "another model, or install OpenVINO 2026.4.1, with which it does"
        )


@dataclass(frozen=True, slots=True)
class Inputs:
    """Nodes shared by all layers."""

    ids: Any
    attended: Any
    positions: Any
    beam: Any
    batch: Any
    """[1] sequences of a call."""
    masks: dict[int, Any]
    """By window."""

    @classmethod
    def of(cls, windows: set[int]) -> Inputs:
        """Those of the converter's graphs."""
        ids = parameter("input_ids", [-1, -1], np.int64)
        attended = parameter("attention_mask", [-1, -1], np.int64)
        positions = parameter("position_ids", [-1, -1], np.int64)
        beam = parameter("beam_idx", [-1], np.int32)
        batch = ops.gather(ops.shape_of(ids), integers([0]), integers(0))
        return cls(ids, attended, positions, beam, batch, _masks(ids, attended, windows))


class DecoderGraph:
    """Builds the graph of one model."""

    def __init__(self, sizes: Sizes, tensors: dict[str, Any]) -> None:
        self._sizes = sizes
        self._tensors = tensors
        self._states: list[Any] = []

    def whole(self, inputs: Inputs, state: Any, name: str) -> Any:
        """The model that ends in the head of a normed state."""
        logits = ops.matmul(self.normed(state, "output_norm"), self._head, False, True)
        result = ops.result(logits)
        result.output(0).get_tensor().set_names({"logits"})
        result.set_friendly_name("logits")
        parameters = [inputs.ids, inputs.attended, inputs.positions, inputs.beam]
        return ov.Model([result], self._states, parameters, name)

    def embedded(self, inputs: Inputs) -> Any:
        """The state before the first layer."""
        return ops.gather(self._embedding, ops.convert(inputs.ids, "i32"), integers(0))

    def headwise(self, rows: Any, heads: int) -> Any:
        """[batch, tokens, heads, head size] of a product."""
        return ops.reshape(rows, integers([0, 0, heads, self._sizes.head_size]), True)

    def remembered(self, rows: Any, name: str, inputs: Inputs) -> Any:
        """All keys or values so far, for each head of queries."""
        sizes_of = self._sizes
        shape = [-1, sizes_of.kv_heads, -1, sizes_of.head_size]
        sizes = [integers([length]) for length in (sizes_of.kv_heads, 0, sizes_of.head_size)]
        empty = ops.broadcast(number(0.0), ops.concat([inputs.batch, *sizes], 0))
        past = ops.read_value(empty, name, ov.Type.f32, ov.PartialShape(shape))
        # Beams are lines of the batch.
        past = ops.gather(past, inputs.beam, integers(0))
        whole = ops.concat([past, rows], 2)
        self._states.append(ops.assign(whole, name))
        shared = sizes_of.heads // sizes_of.kv_heads
        if shared == 1:
            return whole
        apart, shape = ops.unsqueeze(whole, integers(2)), integers([1, 1, shared, 1, 1])
        spread = ops.broadcast(apart, shape, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(spread, integers([0, sizes_of.heads, -1, sizes_of.head_size]), True)

    def rotation(
        self, inputs: Inputs, frequencies: npt.NDArray[np.float64], amplitude: float = 1.0
    ) -> tuple[Any, Any]:
        """Cosine and sine, [batch, 1, tokens, head size] each, times `amplitude`; pairs are halves
        of a head. `frequencies`: [pairs] radians a position."""
        constant = ops.constant(frequencies.astype(np.float32).reshape(1, -1, 1))
        shape = ops.concat([inputs.batch, integers([1]), integers([1])], 0)
        repeated = ops.broadcast(constant, shape, broadcast_spec="BIDIRECTIONAL")
        row = ops.convert(ops.unsqueeze(inputs.positions, integers(1)), "f32")
        angles = ops.transpose(ops.matmul(repeated, row, False, False), integers([0, 2, 1]))
        whole = ops.concat([angles, angles], -1)
        turns = ops.cos(whole), ops.sin(whole)
        if amplitude != 1:
            turns = tuple(ops.multiply(turn, number(amplitude, rank=3)) for turn in turns)
        cosine, sine = (ops.unsqueeze(turn, integers(1)) for turn in turns)
        return cosine, sine

    def turned(self, rows: Any, rotation: tuple[Any, Any]) -> Any:
        cosine, sine = rotation
        half, last = self._sizes.head_size // 2, self._sizes.head_size
        axis, one = integers([3]), integers([1])
        first = ops.slice(rows, integers([0]), integers([half]), one, axis)
        second = ops.slice(rows, integers([half]), integers([last]), one, axis)
        swapped = ops.concat([ops.multiply(second, number(-1.0, rank=4)), first], -1)
        return ops.add(ops.multiply(rows, cosine), ops.multiply(swapped, sine))

    def normed(self, rows: Any, name: str, rank: int = 3) -> Any:
        """Rows over the root of their mean square, times the file's gain, which has the 1 of
        Gemma's (1 + weight) in it."""
        tensor = self.need(f"{name}.weight")
        gain = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        squares = ops.reduce_mean(ops.power(rows, number(2.0, rank)), integers([-1]), True)
        root = ops.sqrt(ops.add(squares, number(self._sizes.epsilon, rank)))
        scaled = ops.multiply(ops.divide(number(1.0, rank), root), rows)
        return ops.multiply(scaled, ops.constant(gain.reshape([1] * (rank - 1) + [-1])))

    def times(self, rows: Any, name: str, expert: int | None = None) -> Any:
        """A product with a matrix, of one expert where the file has one for each."""
        return ops.matmul(rows, self.matrix(f"{name}.weight", expert), False, True)

    @cached_property
    def _embedding(self) -> Any:
        return self.matrix("token_embd.weight")

    @property
    def _head(self) -> Any:
        own = "output.weight"
        return self.matrix(own) if own in self._tensors else self._embedding

    def matrix(self, name: str, expert: int | None = None) -> Any:
        """[rows, columns] as the converter writes Q8_0: bytes around 128, an f16 for 32 of them."""
        tensor = self.need(name)
        if tensor.tensor_type != GGMLQuantizationType.Q8_0:
            raise EngineError(f"{name} is of {tensor.tensor_type.name}, not of Q8_0")
        data = tensor.data if expert is None else tensor.data[expert]
        blocks: npt.NDArray[np.uint8] = np.asarray(data).reshape(
            int(tensor.shape[1]), -1, _BLOCK + 2
        )
        scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)
        values = np.ascontiguousarray(blocks[..., 2:] ^ _CENTRE)
        centres = np.full(scales.shape, _CENTRE, np.uint8)
        shifted = ops.subtract(
            ops.convert(ops.constant(values), "f16"), ops.convert(ops.constant(centres), "f16")
        )
        scaled = ops.multiply(shifted, ops.constant(scales))
        shape = integers([values.shape[0], values.shape[1] * _BLOCK])
        return ops.convert(ops.reshape(scaled, shape, False), "f32")

    def need(self, name: str) -> Any:
        try:
            return self._tensors[name]
        except KeyError:
            raise UnsupportedModelError(
                f"the model file lacks {name}; use a complete GGUF file"
            ) from None


def _masks(ids: Any, attended: Any, windows: set[int]) -> dict[int, Any]:
    """[batch, 1, tokens, all tokens] by window: 0 where a token sees another, else -infinity."""
    new, total = _length(ids), _length(attended)
    zero, one = integers(0), integers(1)
    keys = ops.unsqueeze(ops.range(zero, total, one, "i64"), integers([0, 1, 2]))
    queries = ops.unsqueeze(
        ops.range(ops.subtract(total, new), total, one, "i64"), integers([0, 1, 3])
    )
    there = ops.unsqueeze(ops.not_equal(attended, zero), integers([1, 2]))
    before = ops.less_equal(keys, queries)
    batch = ops.gather(ops.shape_of(ids), integers([0]), zero)
    lengths = [ops.unsqueeze(length, zero) for length in (new, total)]
    shape = ops.concat([batch, integers([1]), *lengths], 0)
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
    near = ops.greater(keys, ops.add(queries, integers(-window)))
    seen = ops.bitwise_and(anything, near)
    seen = ops.bitwise_and(seen, before)
    seen = ops.bitwise_and(anything, seen)
    mask = _mask(ops.bitwise_and(seen, there), shape)
    return ops.slice(mask, integers([0]), total, integers([1]), integers([3]))


def _mask(seen: Any, shape: Any) -> Any:
    return ops.select(ops.broadcast(seen, shape), number(0.0), number(-np.inf))


def _length(ids: Any) -> Any:
    """Length of the lines of a batch."""
    return ops.gather(ops.shape_of(ids), integers(1), integers(0))


def parameter(name: str, shape: list[int], dtype: type[np.generic]) -> Any:
    parameter = ops.parameter(ov.PartialShape(shape), dtype, name=name)
    parameter.output(0).set_names({name})
    return parameter


def integers(values: int | list[int]) -> Any:
    return ops.constant(np.array(values, np.int64))


def number(value: float, rank: int = 0) -> Any:
    return ops.constant(np.full([1] * rank, value, np.float32))
