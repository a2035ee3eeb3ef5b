"""Weights laid out otherwise are the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset13 as ops
import pytest

from outrider.engines.openvino.weights import (
    CompressedWeights,
    fuse_products,
    read_weights,
    write_weights,
)

GROUPS, SIZE = 3, 32
DATA = np.random.default_rng(0).standard_normal((5, 1, GROUPS * SIZE)).astype(np.float32)


def _packed(values: npt.NDArray[np.uint8], kind: Any) -> Any:
    tensor = ov.Tensor(kind, ov.Shape(list(values.shape)))
    flat = values.reshape(-1)
    tensor.data.reshape(-1)[...] = flat[0::2] | (flat[1::2] << 4) if kind == ov.Type.u4 else flat
    return ops.constant(tensor)


def _product(data: Any, rows: int, kind: Any, *, zero: int | None = None, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    top = 16 if kind == ov.Type.u4 else 256
    values = rng.integers(0, top, (rows, GROUPS, SIZE)).astype(np.uint8)
    zeros = rng.integers(0, top, (rows, GROUPS, 1)).astype(np.uint8)
    if zero is not None:
        zeros[...] = zero
    scales = rng.uniform(0.01, 0.1, (rows, GROUPS, 1)).astype(np.float16)
    shifted = ops.subtract(
        ops.convert(_packed(values, kind), "f16"), ops.convert(_packed(zeros, kind), "f16")
    )
    scaled = ops.multiply(shifted, ops.constant(scales))
    shape = ops.constant(np.array([rows, GROUPS * SIZE], np.int64))
    flat = ops.convert(ops.reshape(scaled, shape, False), "f32")
    return ops.matmul(data, flat, False, True)


def _model(*products: tuple[int, Any, int | None]) -> Any:
    data = ops.parameter(ov.PartialShape([-1, 1, GROUPS * SIZE]), np.float32, name="data")
    nodes = [
        _product(data, rows, kind, zero=zero, seed=seed)
        for seed, (rows, kind, zero) in enumerate(products)
    ]
    return ov.Model(nodes, [data])


def _run(model: Any) -> list[npt.NDArray[np.float32]]:
    settings = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    model.validate_nodes_and_infer_types()
    outputs = ov.Core().compile_model(model, "CPU", settings)([DATA])
    return [outputs[index] for index in range(len(model.outputs))]


def _products(model: Any) -> list[Any]:
    return [result.input_value(0).get_node() for result in model.get_results()]


@pytest.mark.parametrize("kind", [ov.Type.u4, ov.Type.u8], ids=["u4", "u8"])
def test_a_fused_product_gives_each_its_own_rows(kind: Any) -> None:
    products = [(64, kind, None), (32, kind, None), (96, kind, None)]
    model = _model(*products)
    fused: Any = fuse_products(_products(model))
    assert fused.get_output_partial_shape(0)[2].get_length() == 192
    for actual, expected in zip(_run(model), _run(_model(*products)), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_products_of_different_types_are_left_alone() -> None:
    model = _model((64, ov.Type.u4, None), (64, ov.Type.u8, None))
    assert fuse_products(_products(model)) is None
    assert {node.get_type_name() for node in _products(model)} == {"MatMul"}


def test_uncompressed_weights_are_left_alone() -> None:
    data = ops.parameter(ov.PartialShape([-1, 4]), np.float32, name="data")
    product = ops.matmul(data, ops.constant(np.ones((3, 4), np.float32)), False, True)
    assert read_weights(product) is None
    assert fuse_products([product, product]) is None
    assert product.input_value(1).get_element_type() == ov.Type.f32


def test_signed_products_without_zero_points_are_fused_too() -> None:
    rng = np.random.default_rng(5)

    def model() -> Any:
        made = _model((64, ov.Type.u8, None), (32, ov.Type.u8, None))
        for product, (values, scales) in zip(_products(made), weights, strict=True):
            constants = CompressedWeights(ops.constant(values), None, ops.constant(scales))
            write_weights(product, constants)
        return made

    weights = [
        (
            rng.integers(-127, 128, (rows, GROUPS, SIZE)).astype(np.int8),
            rng.uniform(0.01, 0.1, (rows, GROUPS, 1)).astype(np.float16),
        )
        for rows in (64, 32)
    ]
    fused_model = model()
    fused: Any = fuse_products(_products(fused_model))
    assert read_weights(fused) is not None
    assert fused.get_output_partial_shape(0)[2].get_length() == 96
    for actual, (values, scales) in zip(_run(fused_model), weights, strict=True):
        matrix = (values * scales.astype(np.float32)).reshape(len(values), -1)
        np.testing.assert_allclose(actual, DATA @ matrix.T, rtol=1e-4, atol=1e-3)
    for actual, expected in zip(_run(fused_model), _run(model()), strict=True):
        np.testing.assert_array_equal(actual, expected)
