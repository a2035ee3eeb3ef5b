"""One block's numbers as bytes: lossless, or quantised to 8 bits.

**Lossless.** A bf16 number is a sign, 8 bits of exponent and 7 of mantissa. The exponents of real
KV take few values (2.8 bits of entropy measured), signs and mantissas are noise. So the exponents
go through zstd's entropy coder as a plane of their own, and the rest travels as it is. (ZipNN,
arXiv 2411.05239, and SplitZip, arXiv 2605.01708, split by planes in the same way.) float32 and
float16 are split likewise; the bits below their exponents are incompressible too.

**Quantised to 8 bits.** Numbers become whole multiples of a step, at most 255 of them between the
least and the largest number that share it; they are off by half a step at most, and zero stays
zero. Keys share a step per head and channel over the tokens of a block, values one per head and
token over its channels: a few channels of keys are large, and are so for every token, those of
values are not (KIVI, arXiv 2402.02750, section 3; KVQuant, arXiv 2401.18079). Levels
go through zstd. Only for whoever allows inexact text.

Everything here is vectorised over a whole block and releases the GIL for most of its time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import zstandard

from outrider.codec.kv.layout import KvDtype, KvLayout
from outrider.errors import MalformedFrameError

Words: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
Floats: TypeAlias = npt.NDArray[np.float32]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Offsets: TypeAlias = npt.NDArray[np.int16]

_LEVEL: Final = 1
"""Compression level of zstd: only its entropy coder matters here; higher levels look for repeats in
vain, at a tenth of the speed."""
_MIN_ZSTD_BYTES: Final = 4
_LENGTH: Final = struct.Struct("<I")
_STEP_BIT: Final = np.uint32(1 << 19)
"""Steps are float32 with four bits of mantissa, the lowest of which is this one: up to 6 % coarser,
and few different ones, so they take half the room."""
_MAX_LEVELS: Final = np.float32(254)
"""Steps between the least and the largest number of a scale; rounding them adds one at most."""
_MAX_OFFSET: Final = np.float32(32_000)
"""Most steps between zero and a number: it fits 16 bits."""
_MAX_NUMBER: Final = np.float32(1e38)
_MIN_STEP: Final = np.finfo(np.float32).tiny
"""Of numbers that are all zero, too."""
_EXPONENT: Final = {
    KvDtype.BF16: (np.uint16, 7, 8),
    KvDtype.F32: (np.uint32, 23, 8),
    KvDtype.F16: (np.uint16, 10, 5),
}
"""Word, bits of mantissa below the exponent, bits of the exponent."""


_KEYS_AND_VALUES: Final = ((0, 2), (1, 3))
"""The first plane of a group, and the axis of [planes, heads, tokens, head size] along which its
numbers share a scale: tokens for keys, channels for values."""


class Payload(IntEnum):
    """Encoding of a section, by its number on the wire."""

    EXACT = 0
    Q8 = 1


def encode_block(block: memoryview, layout: KvLayout, payload: Payload) -> bytes:
    """The section of one block of `layout.block_bytes` bytes."""
    if payload is Payload.EXACT:
        return _encode_exact(block, layout)
    return _encode_quantised(block, layout)


def max_section_bytes(layout: KvLayout) -> int:
    """Most bytes of a section of any payload, if zstd cannot pack anything."""
    num_scale_bytes = 4 * sum(prod(shape) for shape in _scale_shapes(layout))
    quantised = _LENGTH.size + _max_packed_bytes(num_scale_bytes)
    return _max_packed_bytes(layout.block_values) + max(_rest_bytes(layout), quantised)


def decode_block(section: memoryview, layout: KvLayout, payload: Payload) -> bytes:
    """The block's `layout.block_bytes` bytes. Raises MalformedFrameError; nothing larger than the
    block is ever allocated."""
    if payload is Payload.EXACT:
        return _decode_exact(section, layout)
    return _decode_quantised(section, layout)


def _encode_exact(block: memoryview, layout: KvLayout) -> bytes:
    word, mantissa_bits, exponent_bits = _EXPONENT[layout.dtype]
    words = np.frombuffer(block, word)
    exponents = (words >> word(mantissa_bits)).astype(np.uint8)
    if layout.dtype is KvDtype.F16:
        exponents &= np.uint8((1 << exponent_bits) - 1)
    return b"".join((_compress(exponents), *_rest(words, layout.dtype)))


def _rest(words: Words, dtype: KvDtype) -> tuple[memoryview, ...]:
    """Signs and mantissas: the sign on top of the mantissa's first 7 bits, and the bytes below."""
    if dtype is KvDtype.BF16:
        # sign 15, exponent 14..7, mantissa 6..0 -> sign 7, mantissa 6..0
        low = ((words >> np.uint16(8)) & np.uint16(0x80)) | (words & np.uint16(0x7F))
        return (low.astype(np.uint8).data,)
    if dtype is KvDtype.F16:
        # Sign and 10 bits of mantissa: not worth packing into 11 bits.
        return ((words & np.uint16(0x83FF)).data,)
    high = words >> np.uint32(16)
    high = ((high >> np.uint32(8)) & np.uint32(0x80)) | (high & np.uint32(0x7F))
    return high.astype(np.uint8).data, words.astype(np.uint16).data


def _rest_bytes(layout: KvLayout) -> int:
    """Bytes of signs and mantissas in a section."""
    num_bytes = {KvDtype.BF16: 1, KvDtype.F16: 2, KvDtype.F32: 3}[layout.dtype]
    return layout.block_values * num_bytes


def _decode_exact(section: memoryview, layout: KvLayout) -> bytes:
    count = layout.block_values
    word, mantissa_bits, _ = _EXPONENT[layout.dtype]
    rest_bytes = _rest_bytes(layout)
    packed, rest = section[: len(section) - rest_bytes], section[len(section) - rest_bytes :]
    if len(section) <= rest_bytes:
        raise MalformedFrameError("a section of KV is too short for its signs and mantissas")
    exponents = _decompress(packed, count).astype(word) << word(mantissa_bits)
    if layout.dtype is KvDtype.BF16:
        low = np.frombuffer(rest, np.uint8).astype(np.uint16)
        exponents |= (low & np.uint16(0x80)) << np.uint16(8) | low & np.uint16(0x7F)
    elif layout.dtype is KvDtype.F16:
        exponents |= np.frombuffer(rest, np.uint16) & np.uint16(0x83FF)
    else:
        high = np.frombuffer(rest[:count], np.uint8).astype(np.uint32)
        exponents |= (high & np.uint32(0x80)) << np.uint32(24)
        exponents |= (high & np.uint32(0x7F)) << np.uint32(16)
        exponents |= np.frombuffer(rest[count:], np.uint16)
    return bytes(exponents.data)


def _encode_quantised(block: memoryview, layout: KvLayout) -> bytes:
    numbers = _to_float(block, layout.dtype)
    steps: list[Words] = []
    offsets: list[Offsets] = []
    levels: list[Bytes] = []
    # All keys, then all values: zstd's entropy coder makes its tables anew every 128 KiB.
    for part, axis in _scaled_parts(numbers, layout):
        step, offset, level = _quantise(part, axis)
        steps.append(step.ravel())
        offsets.append(offset.ravel())
        levels.append(level.ravel())
    scales = np.stack([np.concatenate(steps), np.concatenate(offsets).view(np.uint16)])
    packed = _compress(_byte_planes(scales))
    return b"".join((_LENGTH.pack(len(packed)), packed, _compress(np.concatenate(levels))))


def _scaled_parts(numbers: Floats, layout: KvLayout) -> Iterator[tuple[Floats, int]]:
    """Views of each group's keys, then of each group's values, [planes, heads, tokens, head size],
    and the axis along which they share a scale."""
    for first, axis in _KEYS_AND_VALUES:
        for part in _planes(numbers, layout):
            yield part[first::2], axis


def _planes(numbers: Floats, layout: KvLayout) -> Iterator[Floats]:
    """Views of each group, [planes, heads, tokens, head size]: keys and values take turns."""
    begin = 0
    for group in layout.groups:
        shape = (group.num_planes, group.num_heads, layout.block_tokens, group.head_size)
        end = begin + group.num_planes * group.plane_values(layout.block_tokens)
        yield numbers[begin:end].reshape(shape)
        begin = end


def _scale_shapes(layout: KvLayout) -> list[tuple[int, ...]]:
    """Shapes of the scales, in the order of `_scaled_parts`."""
    sizes = [(it.num_planes // 2, it.num_heads, it.head_size) for it in layout.groups]
    keys = ((planes, heads, 1, size) for planes, heads, size in sizes)
    values = ((planes, heads, layout.block_tokens, 1) for planes, heads, _ in sizes)
    return [*keys, *values]


def _quantise(numbers: Floats, axis: int) -> tuple[Words, Offsets, Bytes]:
    """The upper halves of the float32 steps and the offsets, one for all numbers along `axis`, and
    the levels: a number is about step x (offset + level)."""
    low, high = numbers.min(axis, keepdims=True), numbers.max(axis, keepdims=True)
    largest = np.maximum(high, -low)
    if not (largest <= _MAX_NUMBER).all():  # no model's
        return _quantise(np.clip(np.nan_to_num(numbers), -_MAX_NUMBER, _MAX_NUMBER), axis)
    step = np.maximum((high - low) / _MAX_LEVELS, largest / _MAX_OFFSET)
    # Rounded up.
    low_bits = _STEP_BIT - np.uint32(1)
    bits = (np.maximum(step, _MIN_STEP).view(np.uint32) + low_bits) & ~low_bits
    scaled = numbers / bits.view(np.float32)
    whole = np.rint(scaled, out=scaled).astype(np.int16)
    offset = whole.min(axis, keepdims=True)
    return (bits >> np.uint32(16)).astype(np.uint16), offset, (whole - offset).astype(np.uint8)


def _byte_planes(words: Words) -> Bytes:
    """All low bytes, then all high ones, of each row: each kind has few values."""
    return np.ascontiguousarray(words.astype("<u2").view(np.uint8).reshape(-1, 2).T).ravel()


def _decode_quantised(section: memoryview, layout: KvLayout) -> bytes:
    out = np.empty(layout.block_values, np.float32)
    shapes = _scale_shapes(layout)
    count = sum(prod(shape) for shape in shapes)
    if len(section) < _LENGTH.size:
        raise MalformedFrameError("a section of KV is too short for its scales")
    end = _LENGTH.size + _LENGTH.unpack(section[: _LENGTH.size])[0]
    planes = _decompress(section[_LENGTH.size : end], 4 * count)
    words = np.ascontiguousarray(planes.reshape(2, -1).T).view("<u2").ravel()
    steps = (words[:count].astype(np.uint32) << np.uint32(16)).view(np.float32)
    if not (np.isfinite(steps) & (steps >= 0)).all():
        raise MalformedFrameError("a scale of quantised KV is no number")
    offsets = words[count:].view(np.int16).astype(np.float32)
    levels = _decompress(section[end:], layout.block_values)
    at = begin = 0
    for (part, _), shape in zip(_scaled_parts(out, layout), shapes, strict=True):
        span = slice(at, at + prod(shape))
        np.add(
            levels[begin : begin + part.size].reshape(part.shape),
            offsets[span].reshape(shape),
            out=part,
        )
        part *= steps[span].reshape(shape)
        at, begin = span.stop, begin + part.size
    return _from_float(out, layout.dtype)


def _to_float(block: memoryview, dtype: KvDtype) -> Floats:
    if dtype is KvDtype.F32:
        return np.frombuffer(block, np.float32)
    if dtype is KvDtype.F16:
        return np.frombuffer(block, np.float16).astype(np.float32)
    return (np.frombuffer(block, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _from_float(numbers: Floats, dtype: KvDtype) -> bytes:
    if dtype is KvDtype.F32:
        return numbers.tobytes()
    if dtype is KvDtype.F16:
        limit = np.finfo(np.float16).max
        return numbers.clip(-limit, limit).astype(np.float16).tobytes()
    bits = numbers.view(np.uint32)
    # Round to nearest even, as conversions to bfloat16 do.
    bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits >> np.uint32(16)).astype(np.uint16).tobytes()


def _compress(plane: Bytes) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(plane.data)


def _max_packed_bytes(count: int) -> int:
    """Size of `count` bytes that zstd cannot compress (zstd.h, ZSTD_COMPRESSBOUND)."""
    return count + (count >> 8) + (max(0, (128 << 10) - count) >> 11)


def _decompress(packed: memoryview, count: int) -> Bytes:
    """[count] bytes. The size that zstd's frame claims is compared before it is allocated."""
    try:
        if len(packed) < _MIN_ZSTD_BYTES or zstandard.frame_content_size(packed) != count:
            raise MalformedFrameError("a section of KV unpacks to another size than its block")
        plane = zstandard.ZstdDecompressor().decompress(packed, max_output_size=count)
    except zstandard.ZstdError as error:
        raise MalformedFrameError(f"a section of KV cannot be unpacked: {error}") from error
    if len(plane) != count:
        raise MalformedFrameError("a section of KV unpacks to another size than its block")
    return np.frombuffer(plane, np.uint8)
