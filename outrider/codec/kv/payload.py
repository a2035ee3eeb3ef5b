"""One block's numbers as bytes: lossless, or quantised to 8, 6 or 4 bits.

**Lossless.** A bf16 number is a sign, 8 bits of exponent and 7 of mantissa. The exponents of real
KV take few values (2.8 bits of entropy measured), signs and mantissas are noise. So the exponents
go through zstd's entropy coder as a plane of their own, and the rest travels as it is. (ZipNN,
arXiv 2411.05239, and SplitZip, arXiv 2605.01708, split by planes in the same way.) float32 and
float16 are split likewise; the bits below their exponents are incompressible too.

**Quantised.** Keys share a scale per channel and block, values one per token, since a few channels
of keys are large and those of values are not (KIVI, arXiv 2402.02750, section 3). Levels travel as
zigzag bytes, again through zstd, which takes less than varints do: 6.6 to 7.5 bits at 8, against
8.3 to 9.2. Only for lossy modes: text from it is not exact.

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

_LEVEL: Final = 1
"""Compression level of zstd: only its entropy coder matters here; higher levels look for repeats in
vain, at a tenth of the speed."""
_MIN_ZSTD_BYTES: Final = 4
_LENGTH: Final = struct.Struct("<I")
_SCALE_STEP: Final = np.uint16(1 << 6)
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
    Q6 = 2
    Q4 = 3

    @property
    def max_level(self) -> int:
        """Largest magnitude of a quantised number."""
        return {Payload.Q8: 127, Payload.Q6: 31, Payload.Q4: 7}[self]


def encode_block(block: memoryview, layout: KvLayout, payload: Payload) -> bytes:
    """The section of one block of `layout.block_bytes` bytes."""
    if payload is Payload.EXACT:
        return _encode_exact(block, layout)
    return _encode_quantised(block, layout, payload)


def max_exact_bytes(layout: KvLayout) -> int:
    """Most bytes of a lossless section: exponents that zstd cannot pack, and the rest."""
    return _max_packed_bytes(layout.block_values) + _rest_bytes(layout)


def decode_block(section: memoryview, layout: KvLayout, payload: Payload) -> bytes:
    """The block's `layout.block_bytes` bytes. Raises MalformedFrameError; nothing larger than the
    block is ever allocated."""
    if payload is Payload.EXACT:
        return _decode_exact(section, layout)
    return _decode_quantised(section, layout, payload)


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


def _encode_quantised(block: memoryview, layout: KvLayout, payload: Payload) -> bytes:
    numbers = _to_float(block, layout.dtype)
    scales: list[Words] = []
    levels: list[Bytes] = []
    # All keys, then all values: zstd's entropy coder makes its tables anew every 128 KiB.
    for first, axis in _KEYS_AND_VALUES:
        for part in _planes(numbers, layout):
            raw, stored = _quantise(part[first::2], axis, payload.max_level)
            levels.append(raw.ravel())
            scales.append(stored.ravel())
    packed = _compress(_byte_planes(np.concatenate(scales)))
    return b"".join((_LENGTH.pack(len(packed)), packed, _compress(np.concatenate(levels))))


def _planes(numbers: Floats, layout: KvLayout) -> Iterator[Floats]:
    """Views of each group, [planes, heads, tokens, head size]: keys and values take turns."""
    begin = 0
    for group in layout.groups:
        shape = (group.num_planes, group.num_heads, layout.block_tokens, group.head_size)
        end = begin + group.num_planes * group.plane_values(layout.block_tokens)
        yield numbers[begin:end].reshape(shape)
        begin = end


def _quantise(numbers: Floats, axis: int, max_level: int) -> tuple[Bytes, Words]:
    """Zigzag levels, and the bits of the float16 scales: one for all numbers along `axis`."""
    largest = np.abs(numbers).max(axis=axis, keepdims=True) / np.float32(max_level)
    # Rounded up to four bits of mantissa: levels are up to 6 % coarser, scales take half the room.
    bits = (largest.astype("<f2").view(np.uint16) + _SCALE_STEP) & ~(_SCALE_STEP - np.uint16(1))
    scaled = numbers * (np.float32(1) / bits.view("<f2").astype(np.float32))
    level = np.rint(scaled, out=scaled).astype(np.int8)
    # Zigzag (Protocol Buffers, encoding, signed integers).
    return ((level << 1) ^ (level >> 7)).view(np.uint8), bits


def _byte_planes(bits: Words) -> Bytes:
    """All low bytes, then all high ones: each kind has few values."""
    return np.ascontiguousarray(bits.astype("<u2").view(np.uint8).reshape(-1, 2).T).ravel()


def _decode_quantised(section: memoryview, layout: KvLayout, payload: Payload) -> bytes:
    out = np.empty(layout.block_values, np.float32)
    parts = [
        (part[first::2], axis) for first, axis in _KEYS_AND_VALUES for part in _planes(out, layout)
    ]
    shapes = [tuple(1 if it == axis else n for it, n in enumerate(p.shape)) for p, axis in parts]
    if len(section) < _LENGTH.size:
        raise MalformedFrameError("a section of KV is too short for its scales")
    end = _LENGTH.size + _LENGTH.unpack(section[: _LENGTH.size])[0]
    planes = _decompress(section[_LENGTH.size : end], 2 * sum(prod(shape) for shape in shapes))
    scales = np.ascontiguousarray(planes.reshape(2, -1).T).view("<f2").ravel().astype(np.float32)
    if not np.isfinite(scales).all():
        raise MalformedFrameError("a scale of quantised KV is no number")
    levels = _decompress(section[end:], layout.block_values)
    if levels.size and int(levels.max()) > 2 * payload.max_level:
        raise MalformedFrameError("a level of quantised KV is beyond its bits")
    # Zigzag: 0, -1, 1, -2, 2, ...
    signed = (levels >> np.uint8(1)).view(np.int8) ^ -(levels & np.uint8(1)).view(np.int8)
    at = begin = 0
    for (part, _), shape in zip(parts, shapes, strict=True):
        scale = scales[at : at + prod(shape)].reshape(shape)
        np.multiply(signed[begin : begin + part.size].reshape(part.shape), scale, out=part)
        at, begin = at + prod(shape), begin + part.size
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
        return numbers.astype(np.float16).tobytes()
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
