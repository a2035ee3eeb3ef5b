"""LEB128: unsigned integers in seven-bit groups, least significant first (DWARF 5, 7.6).

Only the shortest form of a value is accepted, so every value has one encoding and a receiver can
bound a payload by its count. Values have at most 32 bits (`MAX_BYTES` bytes).
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.errors import MalformedFrameError

U32: TypeAlias = npt.NDArray[np.uint32]

MAX_BYTES: Final = 5
MAX_VALUE: Final = 2**32 - 1
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))
_TWO_BYTES_END: Final = 1 << 14


def encoded_length(value: int) -> int:
    """Bytes that the encoding of `value` takes."""
    return max(1, -(-value.bit_length() // 7))


def encode(value: int) -> bytes:
    """The LEB128 of `value`, 0 .. MAX_VALUE. Raises ValueError outside."""
    if 0 <= value < _TWO_BYTES_END:  # nearly all
        if value < 0x80:
            return _ONE_BYTE[value]
        return bytes((value & 0x7F | 0x80, value >> 7))
    if not 0 <= value <= MAX_VALUE:
        raise ValueError(f"{value} is not an unsigned 32-bit integer")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode(data: bytes, *, max_count: int) -> list[int]:
    """All values of `data`, which must hold whole encodings. Fast for a few values.

    Raises MalformedFrameError: above `max_count` values, cut short, above 32 bits, or not the
    shortest form.
    """
    values: list[int] = []
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            if shift >= 7 * MAX_BYTES:
                raise MalformedFrameError("a varint is longer than 5 bytes")
            continue
        if shift and not byte:
            raise MalformedFrameError("a varint is not in its shortest form")
        values.append(value)
        value = shift = 0
    if shift:
        raise MalformedFrameError("the last varint is cut short")
    _check_decoded(len(values), max_count, max(values, default=0))
    return values


def encode_array(values: U32) -> bytes:
    """The concatenated LEB128 of `values` [n]. Fast for many values."""
    wide = np.asarray(values, dtype=np.uint32)
    lengths = np.ones(wide.shape, dtype=np.int64)
    for group in range(1, MAX_BYTES):
        lengths += wide >= np.uint32(1 << 7 * group)
    ends = np.cumsum(lengths)
    out = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    starts = ends - lengths
    for group in range(int(lengths.max(initial=0))):
        (longer,) = np.nonzero(lengths > group)
        low = (wide[longer] >> np.uint32(7 * group)) & np.uint32(0x7F)
        more = (lengths[longer] > group + 1).astype(np.uint32) << np.uint32(7)
        out[starts[longer] + group] = (low | more).astype(np.uint8)
    return out.tobytes()


def decode_array(data: bytes, *, max_count: int) -> U32:
    """Like `decode`, vectorised: [n] values."""
    raw = np.frombuffer(data, dtype=np.uint8)
    if not len(raw):
        return np.empty(0, dtype=np.uint32)
    if raw[-1] & 0x80:
        raise MalformedFrameError("the last varint is cut short")
    (ends,) = np.nonzero(raw < 0x80)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if int(lengths.max()) > MAX_BYTES:
        raise MalformedFrameError("a varint is longer than 5 bytes")
    if bool(np.any((lengths > 1) & (raw[ends] == 0))):
        raise MalformedFrameError("a varint is not in its shortest form")
    place = np.arange(len(raw)) - np.repeat(starts, lengths)
    groups = (raw & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    values = np.add.reduceat(groups, starts)
    _check_decoded(len(values), max_count, int(values.max()))
    return values.astype(np.uint32)


def _check_decoded(count: int, max_count: int, largest: int) -> None:
    if count > max_count:
        raise MalformedFrameError(f"{count} varints where at most {max_count} may stand")
    if largest > MAX_VALUE:
        raise MalformedFrameError("a varint is above 32 bits")
