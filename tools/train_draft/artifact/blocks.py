"""Four-bit blocks that survive the engine's conversion.

A Q4_1 block of 32 values is a scale d and a minimum m in f16, then 16 bytes: the low halves are the
first 16 values, the high halves the others. A value is d * q + m, but the converter writes d * (q -
z) with a whole z, 0 <= z <= 15, in place of -m / d. Rounded so afterwards, weights change by some
8 %; these blocks have m = -d * z from the start, so they change by nothing.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Bytes: TypeAlias = npt.NDArray[np.uint8]

BLOCK = 32
MOST = 15
_HALF = BLOCK // 2
_HEAD_BYTES = 4


def pack(matrix: Floats) -> Bytes:
    """[out, in / 32 * 20] bytes of [out, in] values; zero is always exact."""
    blocks = matrix.reshape(-1, BLOCK)
    least = np.minimum(blocks.min(1, keepdims=True), 0)
    most = np.maximum(blocks.max(1, keepdims=True), 0)
    scale = ((most - least) / MOST).astype(np.float16)
    divisor = np.where(scale > 0, scale, 1).astype(np.float32)
    zero = np.clip(np.round(-least / divisor), 0, MOST)
    values = np.clip(np.round(blocks / divisor) + zero, 0, MOST).astype(np.uint8)
    offset = (-scale.astype(np.float32) * zero).astype(np.float16)
    heads = np.concatenate((scale, offset), 1).view(np.uint8)
    packed = values[:, :_HALF] | (values[:, _HALF:] << 4)
    return np.concatenate((heads, packed), 1).reshape(len(matrix), -1)


def unpack_as_converted(rows: Bytes) -> Floats:
    """[out, in] what the engine computes with."""
    block = rows.reshape(-1, _HEAD_BYTES + _HALF)
    scale, offset = block[:, :_HEAD_BYTES].copy().view(np.float16).astype(np.float32).T[:, :, None]
    packed = block[:, _HEAD_BYTES:]
    values = np.concatenate((packed & MOST, packed >> 4), 1).astype(np.float32)
    divisor = np.where(scale != 0, scale, 1)
    zero = np.clip(np.round(-offset / divisor), 0, MOST)
    return np.asarray((scale * (values - zero)).reshape(len(rows), -1), np.float32)
