"""How a converted model stores its weight matrices.

A layout gives the bits that the values of a matrix are rounded to, and how many values of a row
share a scale. The values come from the file, not from the converter, whose reader rounds what some
formats store exactly (decision 0013).

`python -m bench.fidelity` measures what each layout costs in time and in fidelity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset13 as ops

from outrider.engines.openvino.repacking import FileMatrix, RepackedModel, WeightError
from outrider.engines.openvino.weights import (
    CompressedWeights,
    packed_u4,
    read_weights,
    stored_values,
    write_weights,
)
from outrider.errors import ConfigError

Floats: TypeAlias = npt.NDArray[np.float32]

_CENTRE: Final = 128
_MAX_I8: Final = 127
_HALF_BYTE: Final = 4
_ROW: Final = 0
"""In place of a group size: one scale for a whole row."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to store matrices."""

    name: str
    pack: Callable[[Floats], CompressedWeights] | None
    """From [rows, columns] as the file has it; None: as the converter read it."""
    dynamic_group: int
    """Inputs of a product that share a scale where the CPU rounds them to eight bits on the fly."""


def _signed(group: int) -> Callable[[Floats], CompressedWeights]:
    """i8 with one f16 scale for `group` values of a row, without zero points."""

    def pack(matrix: Floats) -> CompressedWeights:
        rows, columns = matrix.shape
        size = _fitting(columns, group)
        blocks = matrix.reshape(rows, columns // size, size)
        scales = (np.abs(blocks).max(-1, keepdims=True) / _MAX_I8).astype(np.float16)
        divisors = np.where(scales > 0, scales, 1).astype(np.float32)
        values = np.clip(np.rint(blocks / divisors), -_MAX_I8, _MAX_I8).astype(np.int8)
        return CompressedWeights(ops.constant(values), None, ops.constant(scales))

    return pack


def _shifted(bits: int, group: int) -> Callable[[Floats], CompressedWeights]:
    """u8 or u4 with a zero point and one f16 scale for `group` values of a row: half the rounding
    error of signed values where a group's lie on one side of zero."""
    most_stored = (1 << bits) - 1
    # One step fewer than there are, since rounding the scale and the zero point takes up to one; of
    # sixteen none can be spared, and the values at the ends are cut.
    num_steps = most_stored - (bits > _HALF_BYTE)

    def pack(matrix: Floats) -> CompressedWeights:
        rows, columns = matrix.shape
        size = _fitting(columns, group)
        if bits == _HALF_BYTE and rows % 2:
            return _signed(group)(matrix)  # zero points would not fill whole bytes
        blocks = matrix.reshape(rows, columns // size, size)
        least = np.minimum(blocks.min(-1, keepdims=True), 0)
        most = np.maximum(blocks.max(-1, keepdims=True), 0)
        scales = ((most - least) / num_steps).astype(np.float16)
        divisors = np.where(scales > 0, scales, 1).astype(np.float32)
        zeros = np.clip(np.rint(-least / divisors), 0, most_stored)
        values = np.clip(np.rint(blocks / divisors) + zeros, 0, most_stored)
        constant = packed_u4 if bits == _HALF_BYTE else ops.constant
        return CompressedWeights(
            constant(values.astype(np.uint8)),
            constant(zeros.astype(np.uint8)),
            ops.constant(scales),
        )

    return pack


_LAYOUTS: Final = {
    layout.name: layout
    for layout in (
        Layout("i8-groups-32", _signed(32), 32),
        Layout("i8-groups-64", _signed(64), 64),
        Layout("i8-groups-96", _signed(96), 96),
        Layout("i8-rows", _signed(_ROW), 64),
        Layout("u8-groups-32", _shifted(8, 32), 32),
        Layout("u4-groups-64", _shifted(_HALF_BYTE, 64), 64),
        Layout("as-converted", None, 32),
    )
}
LAYOUTS: Final = tuple(_LAYOUTS)
DEFAULT_LAYOUT: Final = "i8-groups-32"
DEFAULT_BITS: Final = 8
LAYOUT_OF_BITS: Final = {DEFAULT_BITS: DEFAULT_LAYOUT, 4: "u4-groups-64"}
"""Layout for each supported number of bits per weight."""
BITS_OF_LAYOUT: Final = {layout: bits for bits, layout in LAYOUT_OF_BITS.items()}
AS_CONVERTED: Final = "as-converted"
"""For files whose every matrix the converter reads without loss, such as our drafts."""


def layout_of(name: str) -> Layout:
    """The layout of a name. Raises ConfigError for another one."""
    if name not in _LAYOUTS:
        raise ConfigError(f"there is no layout {name!r}; use one of {', '.join(LAYOUTS)}")
    return _LAYOUTS[name]


def lay_out_weights(
    model: Any, layout: Layout, repacked: RepackedModel | None
) -> dict[str, WeightError]:
    """Store the matrices of a graph, made from `repacked`'s copy, by the layout. Without `repacked`
    they stay as the converter read them, except what computes faster unchanged (make_symmetric).
    Returns the error of each matrix against the file, by name; empty without `repacked`.

    Raises UnsupportedModelError if the graph has a matrix that is not in the model file.
    """
    # What is no product (the embedding) stays as the copy has it.
    errors = dict(repacked.errors) if repacked is not None and layout.pack is not None else {}
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul":
            continue
        weights = read_weights(node)
        if weights is None:
            continue
        if layout.pack is None or repacked is None:
            make_symmetric(node, weights)
        else:
            values = weights.values.get_data().reshape(weights.shape)
            matrix = repacked.matrix_of(values, weights.scales.get_data())
            packed = layout.pack(matrix.values)
            errors[matrix.name] = _error(matrix, packed)
            write_weights(node, packed)
    model.validate_nodes_and_infer_types()
    return errors


_ROWS_AT_A_TIME: Final = 4096


def _error(matrix: FileMatrix, packed: CompressedWeights) -> WeightError:
    error = WeightError(0.0, 0.0)
    for begin in range(0, len(matrix.values), _ROWS_AT_A_TIME):
        some = slice(begin, begin + _ROWS_AT_A_TIME)
        error += WeightError.of(matrix.values[some], stored_values(packed, some))
    return error


def make_symmetric(product: Any, weights: CompressedWeights) -> None:
    """Write u8 weights whose zero points are all 128 (Q8_0 as the converter reads it) as i8 without
    zero points: the same values, computed faster."""
    if weights.values.get_element_type() != ov.Type.u8 or weights.zero_points is None:
        return
    if np.any(weights.zero_points.get_data() != _CENTRE):
        return
    values = weights.values.get_data().reshape(weights.shape)
    signed = ops.constant((values ^ _CENTRE).view(np.int8))
    write_weights(product, CompressedWeights(signed, None, weights.scales))


def _fitting(columns: int, group: int) -> int:
    """The group size, or the largest below it that divides it and the row."""
    return columns if group == _ROW else gcd(columns, group)
