"""Four-bit blocks, packed and as the engine reads them."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType, dequantize
from hypothesis import given
from hypothesis import strategies as st

from tools.train_draft.artifact.blocks import pack, unpack_as_converted


def test_a_block_is_read_as_the_converter_reads_it() -> None:
    """One block: d = 0.5, m = -1.3, so z = round(2.6) = 3; the plain value would be d * q + m."""
    packed = np.arange(16, dtype=np.uint8) | (np.arange(16, dtype=np.uint8)[::-1] << 4)
    scales = np.array([0.5, -1.3], np.float16).view(np.uint8)
    block = np.concatenate((scales, packed)).astype(np.uint8)
    expected = 0.5 * (np.concatenate((np.arange(16), np.arange(16)[::-1])) - 3.0)
    np.testing.assert_allclose(unpack_as_converted(block[None]), expected[None])
    plain = dequantize(block[None], GGMLQuantizationType.Q4_1)
    np.testing.assert_allclose(unpack_as_converted(block[None]), plain, atol=0.25)


def test_blocks_of_zeros_are_zero() -> None:
    assert not unpack_as_converted(np.zeros((2, 20), np.uint8)).any()
    assert not unpack_as_converted(pack(np.zeros((2, 64), np.float32))).any()


@given(st.integers(0, 10**6), st.floats(1e-3, 10), st.floats(-5, 5))
def test_packed_blocks_are_the_same_before_and_after_conversion(
    seed: int, spread: float, centre: float
) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(centre * spread, spread, (3, 64)).astype(np.float32)
    rows = pack(matrix)
    assert rows.shape == (3, 40)
    read = unpack_as_converted(rows)
    plain = dequantize(rows, GGMLQuantizationType.Q4_1)
    np.testing.assert_allclose(read, plain, atol=0.01 * np.abs(matrix).max())
    blocks = matrix.reshape(-1, 32)
    step = (np.maximum(blocks.max(1), 0) - np.minimum(blocks.min(1), 0)) / 15
    error = np.abs(read - matrix).reshape(-1, 32).max(1)
    assert np.all(error <= 1.02 * step + 1e-6)


def test_packing_what_was_packed_changes_nothing() -> None:
    matrix = np.random.default_rng(0).normal(0, 0.1, (4, 96)).astype(np.float32)
    once = unpack_as_converted(pack(matrix))
    np.testing.assert_allclose(unpack_as_converted(pack(once)), once, atol=2e-3)
