"""Weights laid out otherwise are the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import openvino.opset13 as ops
import pytest

from outrider.engines.openvino.graph.weights import (
    fuse_products,
    make_symmetric,
    read_weights,
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
    make_symmetric(product)
    assert product.input_value(1).get_element_type() == ov.Type.f32


def test_centred_weights_become_signed() -> None:
    model = _model((64, ov.Type.u8, 128))
    make_symmetric(_products(model)[0])
    product = _products(model)[0]
    assert read_weights(product) is None
    kinds = {str(n.get_element_type()) for n in model.get_ops() if n.get_type_name() == "Constant"}
    assert str(ov.Type.i8) in kinds
    assert str(ov.Type.u8) not in kinds
    np.testing.assert_array_equal(_run(model)[0], _run(_model((64, ov.Type.u8, 128)))[0])


@pytest.mark.parametrize(("kind", "zero"), [(ov.Type.u8, None), (ov.Type.u4, 8)])
def test_other_weights_keep_their_type(kind: Any, zero: int | None) -> None:
    model = _model((64, kind, zero))
    make_symmetric(_products(model)[0])
    weights = read_weights(_products(model)[0])
    assert weights is not None
    assert weights.values.get_element_type() == kind
