"""One block's numbers as bytes, lossless.

A bf16 number is a sign, 8 bits of exponent and 7 of mantissa. The exponents of real KV take few
values (2.8 bits of entropy measured), signs and mantissas are noise. So the exponents go through
zstd's entropy coder as a plane of their own, and the rest travels as it is. (Splitting by planes is
what ZipNN, arXiv 2411.05239, and SplitZip, arXiv 2605.01708, do.) float32 and float16 are split the
same way; what is below their exponents is incompressible too.

Everything here is vectorised over a whole block and lets go of the GIL for most of its time.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import zstandard

from outrider.codec.kv.layout import KvDtype, KvLayout
from outrider.errors import MalformedFrameError

Words: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_LEVEL: Final = 1
"""Of zstd: its entropy coder does all the work here; higher levels look for repeats in vain, at a
tenth of the speed."""
_MIN_ZSTD_BYTES: Final = 4
_EXPONENT: Final = {
    KvDtype.BF16: (np.uint16, 7, 8),
    KvDtype.F32: (np.uint32, 23, 8),
    KvDtype.F16: (np.uint16, 10, 5),
}
"""Word, bits of mantissa below the exponent, bits of the exponent."""


def encode_block(block: memoryview, layout: KvLayout) -> bytes:
    """The section of one block of `layout.block_bytes` bytes."""
    word, mantissa_bits, exponent_bits = _EXPONENT[layout.dtype]
    words = np.frombuffer(block, word)
    exponents = (words >> word(mantissa_bits)).astype(np.uint8)
    if layout.dtype is KvDtype.F16:
        exponents &= np.uint8((1 << exponent_bits) - 1)
    return b"".join((_compress(exponents), *_rest(words, layout.dtype)))


def max_section_bytes(layout: KvLayout) -> int:
    """Most bytes of a section: exponents that zstd cannot pack, and the rest."""
    return _max_packed_bytes(layout.block_values) + _rest_bytes(layout)


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
    """Of signs and mantissas in a section."""
    num_bytes = {KvDtype.BF16: 1, KvDtype.F16: 2, KvDtype.F32: 3}[layout.dtype]
    return layout.block_values * num_bytes


def decode_block(section: memoryview, layout: KvLayout) -> bytes:
    """The block's `layout.block_bytes` bytes. Raises MalformedFrameError; nothing larger than the
    block is ever allocated."""
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


def _compress(plane: Bytes) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(plane.data)


def _max_packed_bytes(count: int) -> int:
    """Of `count` bytes that cannot be packed (zstd.h, ZSTD_COMPRESSBOUND)."""
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
