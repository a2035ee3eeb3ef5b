"""Lossless rewrites of compressed weights, for speed: the same values, laid out better.

The converter writes a weight product as

    MatMul(x, Convert(Reshape((Convert(values) - Convert(zero points)) * scales)))

with values [rows, groups, group size] of u4 or u8. Models that are written otherwise are left as
they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import openvino as ov
import openvino.opset13 as ops

_LAST_AXIS: Final = 2


@dataclass(frozen=True, slots=True)
class CompressedWeights:
    """The constants of one product."""

    values: Any
    """[rows, groups, group size] u4 or u8."""
    zero_points: Any
    """[rows, groups, 1], of the same type."""
    scales: Any
    """[rows, groups, 1] f16."""

    @property
    def shape(self) -> list[int]:
        """Of the values."""
        return list(self.values.get_output_shape(0))


def read_weights(product: Any) -> CompressedWeights | None:
    """The constants of a MatMul; None if its weights are not written as above."""
    scaled = _above(product.input_value(1).get_node(), "Convert", "Reshape", "Multiply")
    if scaled is None:
        return None
    shifted, scales = scaled.input_value(0).get_node(), scaled.input_value(1).get_node()
    if shifted.get_type_name() != "Subtract":
        return None
    values = _above(shifted.input_value(0).get_node(), "Convert", "Constant")
    zeros = _above(shifted.input_value(1).get_node(), "Convert", "Constant")
    if values is None or zeros is None or scales.get_type_name() != "Constant":
        return None
    if (
        values.get_element_type() != zeros.get_element_type()
        or len(values.get_output_shape(0)) != 3
    ):
        return None
    return CompressedWeights(values, zeros, scales)


def fuse_products(products: Sequence[Any]) -> Any | None:
    """One product in place of several of the same input; None if they cannot be fused.

    A thin product (the keys' and values' have 192 rows here) costs nearly a thick one's start.
    """
    weights = [each for each in map(read_weights, products) if each is not None]
    if len(weights) != len(products) or len({tuple(each.shape[1:]) for each in weights}) != 1:
        return None
    if len({str(each.values.get_element_type()) for each in weights}) != 1:
        return None
    rows = [each.shape[0] for each in weights]
    fused = _product(
        products[0].input_value(0),
        ops.subtract(
            ops.convert(_stack([each.values for each in weights]), "f16"),
            ops.convert(_stack([each.zero_points for each in weights]), "f16"),
        ),
        _stack([each.scales for each in weights]),
    )
    split = ops.variadic_split(fused, _integers(_LAST_AXIS), _integers(rows))
    for index, product in enumerate(products):
        _replace(product.output(0), split.output(index))
    return fused


def make_symmetric(product: Any) -> None:
    """Write u8 weights whose zero points are all 128 (Q8_0) as i8 without zero points."""
    weights = read_weights(product)
    if weights is None or weights.values.get_element_type() != ov.Type.u8:
        return
    if np.any(weights.zero_points.get_data() != 128):
        return
    values = weights.values.get_data().reshape(weights.shape)
    signed = ops.constant((values ^ 128).view(np.int8))
    rebuilt = _product(product.input_value(0), ops.convert(signed, "f16"), weights.scales)
    _replace(product.output(0), rebuilt.output(0))


def _product(data: Any, shifted: Any, scales: Any) -> Any:
    scaled = ops.multiply(shifted, scales)
    rows, groups, size = scaled.get_output_shape(0)
    flat = ops.reshape(scaled, _integers([rows, groups * size]), False)
    return ops.matmul(data, ops.convert(flat, "f32"), False, True)


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
