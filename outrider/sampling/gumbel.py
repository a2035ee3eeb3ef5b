"""Gumbel-max sampling with counter-based noise: a pure function of (scores, seed, position, id).

The id with the largest scaled score + Gumbel noise is distributed as softmax(scaled scores)
(Gumbel 1954; as a coupling between drafter and verifier: Daliri, Musco, Suresh, arXiv 2408.07978).
It is found exactly, with noise computed for few ids: the largest noise of a group of ids is drawn
first, and an id whose score does not make up for it is left out.

Id i is in group `i % NUM_GROUPS`. One word of a group determines the largest noise among its
`group_size` ids (the group maximum) and which id has it (the group argmax); every other id of the
group has Gumbel noise truncated at the maximum. That is how independent Gumbel variables are
distributed given their maximum (Maddison, Tarlow, Minka, "A* sampling", NeurIPS 2014, section 3),
so the noise of all ids together is distributed as if drawn one by one.

The groups' words are Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC'11): word g is word `g % 4` of the block with

    key     = (seed, NOISE_DOMAIN)
    counter = (g // 4, position, 0, 0)

Word NUM_GROUPS seeds a SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014), and id i's own word is its output number i. Both ends of a wire compute
the same integers; floats enter only in `gumbel` and `truncated_gumbel`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.errors import InvalidSamplingError

Words: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int32]
Scores: TypeAlias = npt.NDArray[np.floating[Any]]

NOISE_DOMAIN = 0x6F75_7472_6964_6572
"""Second key word ("outrider" in ASCII): keeps this noise apart from other uses of a seed."""
NUM_GROUPS = 1024
_SPARE_BITS = 11
"""Low bits of a word that `gumbel` does not use: they determine the group argmax."""
MAX_VOCABULARY = NUM_GROUPS << _SPARE_BITS
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_GROUPS = np.arange(NUM_GROUPS, dtype=np.int32)


def group_size_of(vocabulary_size: int) -> int:
    """Ids per group: a power of two, so that a few ids of padding make no difference.

    Raises InvalidSamplingError for a vocabulary of more than 2**21 ids.
    """
    size = 1 << (-(-vocabulary_size // NUM_GROUPS) - 1).bit_length()
    if size > 1 << _SPARE_BITS:
        raise InvalidSamplingError(
            f"a vocabulary of {vocabulary_size} ids cannot be sampled from: "
            f"at most {MAX_VOCABULARY} are supported"
        )
    return size


@dataclass(frozen=True, slots=True)
class Lifts:
    """Group maxima in the units of a row's scores, which are noise times temperature, in the
    precision of the row."""

    of_groups: Scores
    """[NUM_GROUPS]"""
    argmaxes: Ids
    """[NUM_GROUPS] the group argmaxes; 0 for one beyond the end of the vocabulary."""
    of_argmaxes: Scores
    """[NUM_GROUPS] theirs; -inf for one beyond the end."""
    largest: float
    """Largest absolute value of all lifts."""


class Noise:
    """The noise at one position."""

    def __init__(self, seed: int, position: int, group_size: int) -> None:
        # numpy's generator is set one block before the first: it counts up, then draws.
        counter = ((position << 64) - 1) % (1 << 256)
        stream = np.random.Philox(key=seed | (NOISE_DOMAIN << 64), counter=counter)
        words = stream.random_raw(NUM_GROUPS)
        self.seed = np.uint64(stream.random_raw())
        """Seed of the ids' own words."""
        self.group_maxima: Floats = gumbel(words) + math.log(group_size)
        """[NUM_GROUPS] largest noise of each group."""
        ranks = (words & np.uint64(group_size - 1)).astype(np.int32)
        self.group_argmaxes: Ids = ranks * np.int32(NUM_GROUPS) + _GROUPS
        """[NUM_GROUPS] the id that has it; it may lie beyond the end of the vocabulary."""
        self._lifts: tuple[object, Lifts] | None = None

    def lifts(self, size: int, temperature: float, precision: np.dtype[Any]) -> Lifts:
        """For rows of `size` scores; those asked for last are kept."""
        asked = size, temperature, precision
        if self._lifts is None or self._lifts[0] != asked:
            lifts = (self.group_maxima * temperature).astype(precision)
            there = self.group_argmaxes < size
            argmaxes = np.where(there, self.group_argmaxes, np.int32(0))
            of_argmaxes = np.where(there, lifts, precision.type(-np.inf))
            self._lifts = asked, Lifts(lifts, argmaxes, of_argmaxes, float(np.abs(lifts).max()))
        return self._lifts[1]

    def of(self, ids: Ids) -> Floats:
        """The noise of these ids, [n]; `ids` ascend."""
        groups = ids % NUM_GROUPS
        noise: Floats = self.group_maxima[groups]
        others = np.flatnonzero(self.group_argmaxes[groups] != ids)
        if len(others):
            noise[others] = truncated_gumbel(noise[others], split_mix(self.seed, ids[others]))
        return noise


def noise_of_rows(noises: Sequence[Noise], counts: Sequence[int], ids: Ids) -> Floats:
    """The noise of `counts[0]` ids at the first of these positions, of `counts[1]` at the second,
    and so on; each part's ids ascend. The same numbers as `of` has, in fewer operations."""
    if len(noises) == 1:
        return noises[0].of(ids)
    groups, rows = ids % NUM_GROUPS, np.repeat(np.arange(len(noises)), counts)
    maxima: Floats = np.stack([noise.group_maxima for noise in noises])[rows, groups]
    argmaxes = np.stack([noise.group_argmaxes for noise in noises])[rows, groups]
    seeds = np.array([noise.seed for noise in noises])[rows]
    return np.where(argmaxes == ids, maxima, truncated_gumbel(maxima, split_mix(seeds, ids)))


def split_mix(seed: np.uint64 | Words, numbers: Ids) -> Words:
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


def truncated_gumbel(maxima: Floats, words: Words) -> Floats:
    """Gumbel noise truncated at `maxima`: -log(exp(-maximum) - log(u)), elementwise, between -3.61
    and the maximum."""
    return np.asarray(-np.log(np.exp(-maxima) - np.log(_uniform(words))))


def _uniform(words: Words) -> Floats:
    """The top 53 bits with the last of them set: an odd multiple of 2**-53, exact in float64 and
    never 0 or 1."""
    return ((words >> np.uint64(_SPARE_BITS)) | np.uint64(1)).astype(np.float64) * 2.0**-53


SLACK = 1e-9
"""Far above every rounding error of a scaled score or a total that can matter."""


def scaled(scores: Scores, top: float, temperature: float) -> Floats:
    """(score - top) / temperature in float64, elementwise; 0 for the best, never NaN.

    Subtracting first keeps a tiny temperature from overflowing; -inf means "cannot win".
    """
    with np.errstate(over="ignore"):
        return np.asarray((scores.astype(np.float64) - top) / temperature)


def score_cut(
    kind: np.dtype[Any], depth: float | Floats, top: float, temperature: float
) -> npt.NDArray[np.floating[Any]]:
    """Raw scores that every column with `scaled >= depth` reaches, and hardly another; a depth of
    more than 0, which none has, may give NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        cut = np.asarray(top + temperature * (depth - SLACK))
        cut -= SLACK * (abs(top) + np.abs(cut))
        return np.asarray(np.nextafter(cut.astype(kind), kind.type(-np.inf)))


def gumbel_argmax(values: Floats, noise: Noise, ids: Ids) -> int:
    """Index of the largest `values + noise`, both [n]; `ids` ascend: the lowest wins a tie.

    An id whose value + group maximum is below the total of a group argmax cannot win: noise is
    computed only for the rest. SLACK covers the rounding that may lift noise above its maximum.
    """
    most = values + noise.group_maxima[ids % NUM_GROUPS]
    totals = most[noise.group_argmaxes[ids % NUM_GROUPS] == ids]
    rivals = np.flatnonzero(most >= totals.max(initial=-np.inf) - SLACK)
    return int(rivals[(values[rivals] + noise.of(ids[rivals])).argmax()])
