"""Vectors as bytes."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.codec.vectors import VectorFormat, packed, unpacked


@pytest.mark.parametrize(
    ("form", "num_bytes", "error"),
    [(VectorFormat.F32, 4, 0.0), (VectorFormat.F16, 2, 1e-3), (VectorFormat.I8, 1, 4e-3)],
)
def test_what_is_packed_comes_back(form: VectorFormat, num_bytes: int, error: float) -> None:
    vectors = np.random.default_rng(3).standard_normal((5, 24)).astype(np.float32)
    vectors[2] = 0.0
    data, scales = packed(vectors, form)
    assert len(data) == 5 * 24 * num_bytes
    assert len(scales) == (20 if form is VectorFormat.I8 else 0)
    found = unpacked(data, scales, 24, form)
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    assert (np.abs(found - vectors) <= error * largest).all()


def test_values_are_little_endian() -> None:
    assert packed(np.array([[1.0]], np.float32), VectorFormat.F32)[0] == b"\0\0\x80\x3f"
    assert packed(np.array([[1.0]], np.float32), VectorFormat.F16)[0] == b"\0\x3c"


def test_bytes_that_are_no_vectors_are_refused() -> None:
    for data, scales, dimensions in ((b"123", b"", 1), (bytes(8), b"", 0), (bytes(12), b"", 2)):
        with pytest.raises(ValueError):
            unpacked(data, scales, dimensions, VectorFormat.F32)
    with pytest.raises(ValueError):
        unpacked(bytes(4), b"", 2, VectorFormat.I8)
