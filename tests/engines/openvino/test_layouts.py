"""Layouts keep the file's values, each as closely as it promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset13 as ops
import pytest
from gguf import GGMLQuantizationType, dequantize, quantize
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.engines.openvino.layouts import (
    AS_CONVERTED,
    DEFAULT_LAYOUT,
    LAYOUT_OF_BITS,
    LAYOUTS,
    Layout,
    lay_out_weights,
    layout_of,
)
from outrider.engines.openvino.weights import CompressedWeights, read_weights, stored_values
from outrider.errors import ConfigError

COARSE = LAYOUT_OF_BITS[4]
"""For drafts alone."""
PACKING = [name for name in LAYOUTS if name not in (AS_CONVERTED, COARSE)]
Floats = npt.NDArray[np.float32]


def _values(weights: CompressedWeights) -> Floats:
    """[rows, columns] what a product computes with."""
    values = weights.values.get_data().reshape(weights.shape).astype(np.float32)
    if weights.zero_points is not None:
        values -= weights.zero_points.get_data().astype(np.float32)
    scaled = values * weights.scales.get_data().astype(np.float32)
    return np.asarray(scaled.reshape(len(scaled), -1), np.float32)


def _packed(layout: Layout, matrix: Floats) -> CompressedWeights:
    assert layout.pack is not None
    return layout.pack(matrix)


@given(
    st.sampled_from(PACKING),
    st.integers(0, 2**32 - 1),
    st.sampled_from([64, 96, 576]),
    st.floats(-2, 2),
)
@example("u8-groups-32", 45252062, 64, -1.6328125)
def test_no_value_moves_by_more_than_its_group_allows(
    name: str, seed: int, columns: int, offset: float
) -> None:
    noise = np.random.default_rng(seed).standard_normal((3, columns))
    matrix = np.asarray(noise + offset, np.float32)
    weights = _packed(layout_of(name), matrix)
    steps = np.repeat(weights.scales.get_data().astype(np.float32), weights.shape[2], 2)
    # Half a step, and what the scale itself is rounded by, 2^-11 of the value.
    allowed = 0.51 * steps.reshape(3, -1) + np.abs(matrix) * 2**-10
    assert (np.abs(_values(weights) - matrix) <= allowed).all()


@given(st.integers(0, 2**32 - 1), st.sampled_from([64, 96, 576, 63]), st.floats(-2, 2))
def test_four_bits_move_no_value_by_more_than_a_step(
    seed: int, columns: int, offset: float
) -> None:
    noise = np.random.default_rng(seed).standard_normal((4, columns))
    matrix = np.asarray(noise + offset, np.float32)
    weights = _packed(layout_of(COARSE), matrix)
    assert weights.values.get_element_type() == ov.Type.u4
    stored = stored_values(weights, slice(None))
    steps = np.repeat(weights.scales.get_data().astype(np.float32), weights.shape[2], 2)
    allowed = 1.01 * steps.reshape(4, -1) + np.abs(matrix) * 2**-9
    assert (np.abs(stored - matrix) <= allowed).all()
    np.testing.assert_array_equal(stored_values(weights, slice(1, 3)), stored[1:3])


def test_four_bits_need_whole_bytes() -> None:
    matrix = np.random.default_rng(5).standard_normal((3, 64)).astype(np.float32)
    weights = _packed(layout_of(COARSE), matrix)
    assert weights.values.get_element_type() == ov.Type.i8
    zeros = _packed(layout_of(COARSE), np.zeros((2, 64), np.float32))
    assert not stored_values(zeros, slice(2)).any()


def test_the_default_layout_keeps_q8_0_bit_for_bit() -> None:
    noise = np.random.default_rng(3).standard_normal((5, 96)).astype(np.float32)
    stored = dequantize(quantize(noise, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(_values(_packed(layout_of(DEFAULT_LAYOUT), stored)), stored)


@pytest.mark.parametrize("name", PACKING)
def test_zeros_stay_zeros(name: str) -> None:
    assert not _values(_packed(layout_of(name), np.zeros((2, 64), np.float32))).any()


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no layout 'i3'; use one of i8-groups-32"):
        layout_of("i3")


def _model(kind: Any, zero: int) -> Any:
    """A product as the converter writes it, of 64 rows of two groups."""
    rng = np.random.default_rng(4)
    values = rng.integers(0, 256, (64, 2, 32)).astype(np.uint8)
    if kind == ov.Type.u4:
        tensor = ov.Tensor(kind, ov.Shape([64, 2, 32]))
        tensor.data.reshape(-1)[...] = values.reshape(-1)[0::2]
        values = tensor
    zeros = ops.constant(np.full((64, 2, 1), zero, np.uint8))
    shifted = ops.subtract(ops.convert(ops.constant(values), "f16"), ops.convert(zeros, "f16"))
    scaled = ops.multiply(shifted, ops.constant(np.full((64, 2, 1), 0.01, np.float16)))
    flat = ops.reshape(scaled, ops.constant(np.array([64, 64], np.int64)), False)
    data = ops.parameter(ov.PartialShape([-1, 64]), np.float32)
    return ov.Model([ops.matmul(data, ops.convert(flat, "f32"), False, True)], [data])


def _weights(model: Any) -> CompressedWeights:
    weights = read_weights(model.get_results()[0].input_value(0).get_node())
    assert weights is not None
    return weights


def test_as_converted_centred_weights_become_signed_and_nothing_else() -> None:
    model = _model(ov.Type.u8, 128)
    before = _values(_weights(model))
    lay_out_weights(model, layout_of(AS_CONVERTED), None)
    after = _weights(model)
    assert after.zero_points is None
    assert after.values.get_element_type() == ov.Type.i8
    np.testing.assert_array_equal(_values(after), before)


def test_as_converted_other_zero_points_stay() -> None:
    model = _model(ov.Type.u8, 7)
    before = _values(_weights(model))
    lay_out_weights(model, layout_of(AS_CONVERTED), None)
    assert _weights(model).zero_points is not None
    np.testing.assert_array_equal(_values(_weights(model)), before)
