"""Weight products with compressed weights: how a graph writes them, and products joined for speed.

A product of compressed weights is one of

    MatMul(x, Convert(Reshape(Convert(values) * scales)))
    MatMul(x, Convert(Reshape((Convert(values) - Convert(zero points)) * scales)))

with values [rows, groups, group size] of i8, u4 or u8. The CPU plugin recognises both and computes
with the values as they are. Products that are written otherwise are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset13 as ops

_LAST_AXIS: Final = 2


@dataclass(frozen=True, slots=True)
class CompressedWeights:
    """The constants of one product."""

    values: Any
    """[rows, groups, group size] i8, u4 or u8."""
    zero_points: Any | None
    """[rows, groups, 1], of the same type; None: all are 0."""
    scales: Any
    """[rows, groups, 1] f16."""

    @property
    def shape(self) -> list[int]:
        """Shape of the values."""
        return list(self.values.get_output_shape(0))

    @property
    def kind(self) -> tuple[str, bool]:
        """Element type, and whether zero points are absent: products can be joined only if this and
        their groups are equal."""
        return str(self.values.get_element_type()), self.zero_points is None


def stored_values(weights: CompressedWeights, rows: slice) -> npt.NDArray[np.float32]:
    """[rows, columns] what the constants stand for."""
    values: npt.NDArray[np.float32] = _numbers(weights.values)[rows].astype(np.float32)
    if weights.zero_points is not None:
        values -= _numbers(weights.zero_points)[rows]
    values *= weights.scales.get_data()[rows].astype(np.float32)
    return values.reshape(len(values), -1)


def packed_u4(values: npt.NDArray[np.uint8]) -> Any:
    """A constant of numbers from 0 to 15, two in a byte, the first one in its low half. Their count
    is even."""
    halves = values.reshape(-1, 2)
    tensor = ov.Tensor(ov.Type.u4, ov.Shape(list(values.shape)))
    tensor.data.reshape(-1).view(np.uint8)[...] = halves[:, 0] | halves[:, 1] << 4
    return ops.constant(tensor)


def _numbers(constant: Any) -> npt.NDArray[Any]:
    """A constant's numbers, each in a byte of its own."""
    data: npt.NDArray[Any] = constant.get_data()
    if constant.get_element_type() != ov.Type.u4:
        return data
    packed = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    halves = np.stack([packed & 0xF, packed >> 4], axis=-1)
    return halves.reshape(list(constant.get_output_shape(0)))


def read_weights(product: Any) -> CompressedWeights | None:
    """The constants of a MatMul; None if its weights are not written as above."""
    scaled = _above(product.input_value(1).get_node(), "Convert", "Reshape", "Multiply")
    if scaled is None:
        return None
    shifted, scales = scaled.input_value(0).get_node(), scaled.input_value(1).get_node()
    zeros = None
    if shifted.get_type_name() == "Subtract":
        zeros = _above(shifted.input_value(1).get_node(), "Convert", "Constant")
        if zeros is None:
            return None
        shifted = shifted.input_value(0).get_node()
    values = _above(shifted, "Convert", "Constant")
    if values is None or scales.get_type_name() != "Constant":
        return None
    if len(values.get_output_shape(0)) != 3:
        return None
    if zeros is not None and zeros.get_element_type() != values.get_element_type():
        return None
    return CompressedWeights(values, zeros, scales)


def write_weights(product: Any, weights: CompressedWeights) -> None:
    """Let the product compute with other weights of the same shape."""
    shifted = ops.convert(weights.values, "f16")
    if weights.zero_points is not None:
        shifted = ops.subtract(shifted, ops.convert(weights.zero_points, "f16"))
    scaled = ops.multiply(shifted, weights.scales)
    rows, groups, size = scaled.get_output_shape(0)
    flat = ops.reshape(scaled, _integers([rows, groups * size]), False)
    product.input(1).replace_source_output(ops.convert(flat, "f32").output(0))


def fuse_products(products: Sequence[Any]) -> Any | None:
    """One product in place of several of the same input; None if they cannot be fused.

    A thin product (192 rows, such as keys and values in the default model) takes nearly as long to
    start as a thick one.
    """
    weights = [each for each in map(read_weights, products) if each is not None]
    if len(weights) != len(products):
        return None
    if len({(each.kind, *each.shape[1:]) for each in weights}) != 1:
        return None
    zeros = [each.zero_points for each in weights if each.zero_points is not None]
    joined = CompressedWeights(
        _stack([each.values for each in weights]),
        _stack(zeros) if zeros else None,
        _stack([each.scales for each in weights]),
    )
    # A product whose weights `write_weights` replaces at once.
    fused = ops.matmul(products[0].input_value(0), products[0].input_value(1), False, True)
    write_weights(fused, joined)
    rows = [each.shape[0] for each in weights]
    fused.validate_and_infer_types()
    split = ops.variadic_split(fused, _integers(_LAST_AXIS), _integers(rows))
    for index, product in enumerate(products):
        _replace(product.output(0), split.output(index))
    return fused


def _stack(constants: Sequence[Any]) -> Any:
    """One constant of several, along the first axis; sub-byte types as their bytes."""
    kind = constants[0].get_element_type()
    shape = list(constants[0].get_output_shape(0))
    shape[0] = sum(each.get_output_shape(0)[0] for each in constants)
    tensor = ov.Tensor(kind, ov.Shape(shape))
    parts = [np.ascontiguousarray(each.get_data()).reshape(-1) for each in constants]
    tensor.data.reshape(-1)[...] = np.concatenate(parts)
    return ops.constant(tensor)


def _above(node: Any, *kinds: str) -> Any | None:
    """Follow first inputs through nodes of these kinds; the last one, or None."""
    for index, kind in enumerate(kinds):
        node = node if index == 0 else node.input_value(0).get_node()
        if node.get_type_name() != kind:
            return None
    return node


def _replace(old: Any, new: Any) -> None:
    for consumer in list(old.get_target_inputs()):
        consumer.replace_source_output(new)


def _integers(values: int | Sequence[int]) -> Any:
    return ops.constant(np.array(values, np.int64))
