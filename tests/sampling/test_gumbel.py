"""The noise against Philox4x64-10 and SplitMix64 in plain integers, and its distribution."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import InvalidSamplingError
from outrider.sampling.gumbel import (
    NOISE_DOMAIN,
    NUM_GROUPS,
    Noise,
    group_size_of,
    gumbel,
    split_mix,
    truncated_gumbel,
)

MASK = (1 << 64) - 1
U64 = st.integers(0, MASK)
GROUP_SIZES = st.sampled_from([1, 2, 64, 2048])


def philox4x64_10(counter: list[int], key: list[int]) -> list[int]:
    """Salmon et al., SC'11, section 3.3, with the published multipliers and Weyl constants."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [
            (second >> 64) ^ c[1] ^ k[0],
            second & MASK,
            (first >> 64) ^ c[3] ^ k[1],
            first & MASK,
        ]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return c


def split_mix_output(seed: int, number: int) -> int:
    """Steele, Lea, Flood, OOPSLA 2014, figure 17's mixer, the state counted directly."""
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def word(seed: int, position: int, number: int) -> int:
    return philox4x64_10([number // 4, position, 0, 0], [seed, NOISE_DOMAIN])[number % 4]


def uniform(word: int) -> float:
    return ((word >> 11) | 1) * 2.0**-53


def noise_of(seed: int, position: int, group_size: int, token: int) -> float:
    """The definition, for one id."""
    of_group = word(seed, position, token % NUM_GROUPS)
    maximum = math.log(group_size) - math.log(-math.log(uniform(of_group)))
    if of_group % group_size == token // NUM_GROUPS:
        return maximum
    own = split_mix_output(word(seed, position, NUM_GROUPS), token)
    return -math.log(math.exp(-maximum) - math.log(uniform(own)))


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
        (
            [MASK] * 4,
            [MASK] * 2,
            "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0",
        ),
        (
            [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89],
            [0x452821E638D01377, 0xBE5466CF34E90C6C],
            "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6",
        ),
    ],
)
def test_the_reference_gives_the_random123_known_answers(
    counter: list[int], key: list[int], words: str
) -> None:
    assert philox4x64_10(counter, key) == [int(word, 16) for word in words.split()]


def test_split_mix_gives_the_published_outputs() -> None:
    """The first three for seed 1234567, as widely used to check implementations."""
    words = split_mix(np.uint64(1234567), np.arange(3, dtype=np.int32)).tolist()
    assert words == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(seed=U64, position=U64, token=st.integers(0, 300_000), group_size=GROUP_SIZES)
def test_the_noise_of_an_id_is_the_definition_s(
    seed: int, position: int, token: int, group_size: int
) -> None:
    noise = Noise(seed, position, group_size).of(np.array([token], dtype=np.int32))
    assert noise.tolist() == pytest.approx([noise_of(seed, position, group_size, token)], abs=1e-12)


@given(seed=U64, position=U64, numbers=st.lists(st.integers(0, 300_000), min_size=1, max_size=20))
def test_split_mix_is_the_reference_s(seed: int, position: int, numbers: list[int]) -> None:
    words = split_mix(np.uint64(seed), np.array(numbers, dtype=np.int32)).tolist()
    assert words == [split_mix_output(seed, number) for number in numbers]


@given(
    seed=U64,
    position=st.integers(0, 10_000),
    group_size=GROUP_SIZES,
    ids=st.sets(st.integers(0, 9999), min_size=1, max_size=120),
)
def test_an_id_s_noise_does_not_depend_on_who_is_asked_with_it(
    seed: int, position: int, group_size: int, ids: set[int]
) -> None:
    noise, chosen = Noise(seed, position, group_size), np.array(sorted(ids), dtype=np.int32)
    row = noise.of(np.arange(10_000, dtype=np.int32))
    assert noise.of(chosen).tolist() == row[chosen].tolist()


@given(seed=U64, position=st.integers(0, 10_000))
def test_a_groups_largest_noise_is_at_its_argmax(seed: int, position: int) -> None:
    noise = Noise(seed, position, 8)
    rows = noise.of(np.arange(8 * NUM_GROUPS, dtype=np.int32)).reshape(8, NUM_GROUPS)
    assert (rows <= noise.group_maxima + 1e-12).all()
    held = rows.ravel()[noise.group_argmaxes]
    assert held.tolist() == noise.group_maxima.tolist()


def test_the_noise_is_pinned_forever() -> None:
    noise = Noise(seed=42, position=7, group_size=64)
    assert noise.group_argmaxes[:3].tolist() == [22_528, 12_289, 11_266]
    ids = np.array([0, 1, 49_151], dtype=np.int32)
    expected = [-0.875725525025965, 0.1373897047478687, 0.692503533260159]
    assert noise.of(ids).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("group_size", [1, 2, 64])
def test_all_ids_together_have_independent_gumbel_noise(group_size: int) -> None:
    """The empirical distribution of each member, and of sums over a group, which a wrong joint
    distribution would change: the sum of k has mean k*gamma and variance k*pi^2/6."""
    size = group_size * NUM_GROUPS
    rows = np.array(
        [Noise(5, at, group_size).of(np.arange(size, dtype=np.int32)) for at in range(40)]
    )
    ranks = np.sort(np.exp(-np.exp(-rows)).ravel())  # uniform if the noise is Gumbel's
    steps = np.arange(1, len(ranks) + 1) / len(ranks)
    assert abs(ranks - steps).max() * math.sqrt(len(ranks)) < 1.95  # Kolmogorov, 0.1 %
    sums = rows.reshape(40, group_size, NUM_GROUPS).sum(axis=1)
    assert sums.mean() / group_size == pytest.approx(np.euler_gamma, abs=0.02)
    assert sums.var() / group_size == pytest.approx(math.pi**2 / 6, rel=0.04)


@pytest.mark.parametrize(
    ("size", "group_size"),
    [(1, 1), (1024, 1), (1025, 2), (49_152, 64), (151_936, 256), (2**21, 2048)],
)
def test_groups_have_room_for_the_vocabulary(size: int, group_size: int) -> None:
    assert group_size_of(size) == group_size


def test_a_vocabulary_without_bits_for_its_argmaxes_is_refused() -> None:
    with pytest.raises(InvalidSamplingError, match="at most 2097152"):
        group_size_of(2**21 + 1)


def test_gumbel_is_finite_at_both_ends() -> None:
    low, high = gumbel(np.array([0, MASK], dtype=np.uint64)).tolist()
    assert low == pytest.approx(-math.log(53 * math.log(2)))
    assert high == pytest.approx(53 * math.log(2), abs=1e-9)


def test_truncated_noise_stays_below_the_maximum() -> None:
    words = np.array([0, 1 << 63, MASK], dtype=np.uint64)
    for maximum in (-3.6, 0.0, 36.7):
        noise = truncated_gumbel(np.full(3, maximum), words)
        assert np.isfinite(noise).all()
        assert (noise <= maximum + 1e-12).all()
