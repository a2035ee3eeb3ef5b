"""Vectors as bytes (pure)."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Vectors: TypeAlias = npt.NDArray[np.float32]


class VectorFormat(IntEnum):
    """How values are written, little-endian; numbers as in inference.proto."""

    F32 = 1
    F16 = 2
    I8 = 3


def packed(vectors: Vectors, form: VectorFormat) -> tuple[bytes, bytes]:
    """The values of [n, d] vectors one after the other, and the scales [n] of signed bytes, which
    are empty for the other formats. A value is its byte times its vector's scale."""
    if form is VectorFormat.F32:
        return vectors.astype("<f4", copy=False).tobytes(), b""
    if form is VectorFormat.F16:
        return vectors.astype("<f2").tobytes(), b""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    scales = np.where(largest > 0, largest / 127, 1).astype("<f4")
    return np.rint(vectors / scales).astype(np.int8).tobytes(), scales.tobytes()


def unpacked(data: bytes, scales: bytes, dimensions: int, form: VectorFormat) -> Vectors:
    """[n, d] what `packed` wrote, as far as the format kept it. Raises ValueError for bytes that
    are no such vectors."""
    if dimensions < 1:
        raise ValueError("vectors have no dimensions")
    kind = {VectorFormat.F32: "<f4", VectorFormat.F16: "<f2", VectorFormat.I8: "i1"}[form]
    values = np.frombuffer(data, kind).reshape(-1, dimensions).astype(np.float32)
    if form is VectorFormat.I8:
        values *= np.frombuffer(scales, "<f4").reshape(len(values), 1)
    return values
