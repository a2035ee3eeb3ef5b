"""Counter-based Gumbel noise: a pure function of (seed, position, id), its peaks known first.

Id i is in group `i % NUM_GROUPS`. One word of a group says the largest noise among its `members`
ids and which of them has it, its *holder*; every other member has Gumbel noise cut off at this
peak. That is how independent Gumbel variables are distributed when their maximum is drawn first
(Maddison, Tarlow, Minka, "A* sampling", NeurIPS 2014, section 3), so all ids together have the
noise they would have had one by one, and who looks for the best of a row rules out nearly all of
it by NUM_GROUPS words.

The groups' words are Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC'11): word g is word `g % 4` of the block with

    key     = (seed, NOISE_DOMAIN)
    counter = (g // 4, position, 0, 0)

Word NUM_GROUPS seeds a SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014), and id i's own word is its output number i. Both ends of a wire compute
the same integers; floats enter only in `gumbel` and `truncated`.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.errors import InvalidSamplingError

Words: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int32]

NOISE_DOMAIN = 0x6F75_7472_6964_6572
"""Second key word ("outrider" in ASCII): keeps this noise apart from other uses of a seed."""
NUM_GROUPS = 1024
_SPARE_BITS = 11
"""The low bits of a word that `gumbel` does not look at: they name the holder."""
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_GROUPS = np.arange(NUM_GROUPS, dtype=np.int32)


def members_of(vocabulary_size: int) -> int:
    """Ids that a group may have: a power of two, so that a few ids of padding make no difference.

    Raises InvalidSamplingError for a vocabulary of more than 2**21 ids.
    """
    members = 1 << (-(-vocabulary_size // NUM_GROUPS) - 1).bit_length()
    if members > 1 << _SPARE_BITS:
        raise InvalidSamplingError(
            f"a vocabulary of {vocabulary_size} ids cannot be sampled from: "
            f"at most {NUM_GROUPS << _SPARE_BITS} are supported"
        )
    return members


class Noise:
    """The noise at one position, for groups of `members` ids."""

    def __init__(self, seed: int, position: int, members: int) -> None:
        # numpy's generator is set one block before the first: it counts up, then draws.
        counter = ((position << 64) - 1) % (1 << 256)
        stream = np.random.Philox(key=seed | (NOISE_DOMAIN << 64), counter=counter)
        words, self._seed = stream.random_raw(NUM_GROUPS), np.uint64(stream.random_raw())
        self.peaks: Floats = gumbel(words) + math.log(members)
        """[NUM_GROUPS] the largest noise of each group."""
        ranks = (words & np.uint64(members - 1)).astype(np.int32)
        self.holders: Ids = ranks * np.int32(NUM_GROUPS) + _GROUPS
        """[NUM_GROUPS] the id that has it; the vocabulary may end before."""
        self._held: tuple[int, Ids, Floats] | None = None

    def held(self, size: int) -> tuple[Ids, Floats]:
        """The holders in a vocabulary of so many ids and their noise, both [n]; worked out once."""
        if self._held is None or self._held[0] != size:
            there = self.holders < size
            self._held = size, self.holders[there], self.peaks[there]
        return self._held[1:]

    def of(self, ids: Ids) -> Floats:
        """The noise of these ids, [n]; `ids` ascend."""
        groups = ids % NUM_GROUPS
        noise: Floats = self.peaks[groups]
        others = np.flatnonzero(self.holders[groups] != ids)
        if len(others):
            noise[others] = truncated(noise[others], split_mix(self._seed, ids[others]))
        return noise


def split_mix(seed: np.uint64, numbers: Ids) -> Words:
    """Outputs of SplitMix64, elementwise; the first is number 0."""
    words: Words = seed + (numbers.astype(np.uint64) + np.uint64(1)) * _GAMMA
    for shift, factor in _MIX:
        words ^= words >> shift
        words *= factor
    return np.asarray(words ^ (words >> np.uint64(31)))


def gumbel(words: Words) -> Floats:
    """Standard Gumbel noise -log(-log(u)), elementwise, between -3.61 and 36.74.

    The noise grows with the word.
    """
    return np.asarray(-np.log(-np.log(_uniform(words))))


def truncated(peaks: Floats, words: Words) -> Floats:
    """Gumbel noise cut off at `peaks`: -log(exp(-peak) - log(u)), elementwise, between -3.61 and
    the peak."""
    return np.asarray(-np.log(np.exp(-peaks) - np.log(_uniform(words))))


def _uniform(words: Words) -> Floats:
    """The top 53 bits with the last of them set: an odd multiple of 2**-53, exact in float64 and
    never 0 or 1."""
    return ((words >> np.uint64(_SPARE_BITS)) | np.uint64(1)).astype(np.float64) * 2.0**-53
