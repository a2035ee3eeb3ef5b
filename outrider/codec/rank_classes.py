"""Ranks in classes: four bits give the class of a rank by size, further bits its place in the
class.

Sixteen classes of neighbouring ranks, small ones first; a class of 2^b ranks takes b more bits. So
a rank takes 6 to 22 bits, where LEB128 takes 8, 16 or 24. First come the classes of all ranks, two
to a byte, the first one in the low bits; behind them the other bits, rank by rank, the lowest bit
first, and zeros up to a whole byte. A sequence of ranks has one encoding.

The sizes fit the ranks of a table by frequency, whatever its vocabulary: they were chosen on the
prompts of bench/data/tuning, and measured on others (bench/codec.py).
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.errors import MalformedFrameError

U32: TypeAlias = npt.NDArray[np.uint32]

_BITS: Final = np.array([2, 2, 4, 4, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 18], dtype=np.int64)
_STARTS: Final = np.concatenate(([0], np.cumsum(1 << _BITS)[:-1]))
_MIN_BITS: Final = int(_BITS.min())
_MAX_BITS: Final = int(_BITS.max())
MAX_RANKS: Final = int(_STARTS[-1] + (1 << _MAX_BITS))
"""Vocabularies up to this size have a class for each rank."""


def encoded_bounds(count: int) -> tuple[int, int]:
    """Least and most bytes of so many ranks."""
    head = -(-count // 2)
    return head + -(-count * _MIN_BITS // 8), head + -(-count * _MAX_BITS // 8)


def encode(ranks: U32) -> bytes:
    """The encoding of `ranks` [n], each below MAX_RANKS."""
    classes = np.searchsorted(_STARTS, ranks, side="right") - 1
    bits = _BITS[classes]
    rest = ranks.astype(np.int64) - _STARTS[classes]
    ends = np.cumsum(bits)
    num_bits = int(ends[-1]) if len(ends) else 0
    begins = ends - bits
    # At most 18 bits, moved by at most 7: four bytes each. None overlap, so sums are unions.
    first, moved = begins >> 3, rest << (begins & 7)
    num_bytes = -(-num_bits // 8)
    out = np.zeros(num_bytes + 4, dtype=np.int64)
    for byte in range(4):
        part = (moved >> 8 * byte) & 0xFF
        out += np.bincount(first + byte, weights=part, minlength=len(out)).astype(np.int64)
    return _halves(classes) + out[:num_bytes].astype(np.uint8).tobytes()


def _halves(classes: npt.NDArray[np.int64]) -> bytes:
    padded = np.zeros(len(classes) + len(classes) % 2, dtype=np.uint8)
    padded[: len(classes)] = classes
    return (padded[0::2] | padded[1::2] << 4).tobytes()


def decode(data: bytes, count: int) -> U32:
    """The ranks [count] from which `encode` made `data`. Raises MalformedFrameError for anything
    else; memory is bounded by `data`."""
    least, most = encoded_bounds(count)
    if not least <= len(data) <= most:
        raise MalformedFrameError(f"{count} ranks in classes cannot have {len(data)} bytes")
    raw = np.frombuffer(data, dtype=np.uint8)
    head = -(-count // 2)
    classes = np.empty(2 * head, dtype=np.int64)
    classes[0::2], classes[1::2] = raw[:head] & 0x0F, raw[:head] >> 4
    if count % 2 and classes[-1]:
        raise MalformedFrameError("ranks in classes are not padded with zeros")
    classes = classes[:count]
    bits = _BITS[classes]
    ends = np.cumsum(bits)
    num_bits = int(ends[-1]) if count else 0
    if head + -(-num_bits // 8) != len(data):
        raise MalformedFrameError("ranks in classes have another length than their classes say")
    if num_bits % 8 and raw[-1] >> num_bits % 8:
        raise MalformedFrameError("ranks in classes are not padded with zeros")
    stream = np.zeros(len(data) - head + 4, dtype=np.int64)
    stream[: len(data) - head] = raw[head:]
    begins = ends - bits
    at = begins >> 3
    window = stream[at] | stream[at + 1] << 8 | stream[at + 2] << 16 | stream[at + 3] << 24
    rest = (window >> (begins & 7)) & ((1 << bits) - 1)
    ranks: U32 = (rest + _STARTS[classes]).astype(np.uint32)
    return ranks
