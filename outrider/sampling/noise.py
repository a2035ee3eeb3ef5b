"""Counter-based Gumbel noise: a pure function of (seed, position, id).

The generator is Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC'11). The 64-bit word of an id is word `id % 4` of the block with

    key     = (seed, NOISE_DOMAIN)
    counter = (id // 4, position, 0, 0)

so one word can be computed alone, and the words of ids 0..n-1 are one stream in C. Both ends of
a wire compute the same integers; floats enter only in `gumbel`.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int32]

NOISE_DOMAIN = 0x6F75_7472_6964_6572
"""Second key word ("outrider" in ASCII): keeps this noise apart from other uses of a seed."""

_WORDS_PER_BLOCK = 4
_SPARSE_IDS = 96
"""Up to here, jumping to each id's block (2 us) beats running the stream through them all."""


def words_of_row(seed: int, position: int, count: int) -> Words:
    """The words of ids 0..count-1, [count]."""
    return _stream(seed, position).random_raw(count)


def words_of_ids(seed: int, position: int, ids: Ids) -> Words:
    """The words of these ids, [n]; `ids` ascend. Equal to `words_of_row(...)[ids]`."""
    if len(ids) > _SPARSE_IDS:
        return words_of_row(seed, position, int(ids[-1]) + 1)[ids]
    stream, at = _stream(seed, position), 0
    words = np.empty(len(ids), dtype=np.uint64)
    block: Words = words
    drawn = -1
    for index, token in enumerate(ids.tolist()):
        wanted = token // _WORDS_PER_BLOCK
        if wanted != drawn:
            stream.advance(wanted - at)
            block, at, drawn = stream.random_raw(_WORDS_PER_BLOCK), wanted + 1, wanted
        words[index] = block[token % _WORDS_PER_BLOCK]
    return words


def gumbel(words: Words) -> Floats:
    """Standard Gumbel noise -log(-log(u)), elementwise, between -3.61 and 36.74.

    u takes the top 53 bits with the last of them set: an odd multiple of 2**-53, exact in
    float64 and never 0 or 1. The noise grows with the word.
    """
    uniform = ((words >> np.uint64(11)) | np.uint64(1)).astype(np.float64) * 2.0**-53
    return np.asarray(-np.log(-np.log(uniform)))


def _stream(seed: int, position: int) -> np.random.Philox:
    """numpy's generator set one block before the row's first: it counts up, then draws."""
    counter = ((position << 64) - 1) % (1 << 256)
    return np.random.Philox(key=seed | (NOISE_DOMAIN << 64), counter=counter)
