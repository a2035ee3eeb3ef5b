"""The noise against an independent Philox4x64-10 in plain integers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.sampling.noise import NOISE_DOMAIN, gumbel, words_of_ids, words_of_row

MASK = (1 << 64) - 1
U64 = st.integers(0, MASK)


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


def noise_word(seed: int, position: int, token: int) -> int:
    return philox4x64_10([token // 4, position, 0, 0], [seed, NOISE_DOMAIN])[token % 4]


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


@given(seed=U64, position=U64, token=st.integers(0, 300_000))
def test_a_word_alone_is_the_reference_s(seed: int, position: int, token: int) -> None:
    words = words_of_ids(seed, position, np.array([token], dtype=np.int32))
    assert words.tolist() == [noise_word(seed, position, token)]


@given(seed=U64, position=U64)
def test_a_row_is_the_reference_s(seed: int, position: int) -> None:
    expected = [noise_word(seed, position, token) for token in range(11)]
    assert words_of_row(seed, position, 11).tolist() == expected


@given(
    seed=U64,
    position=st.integers(0, 10_000),
    ids=st.sets(st.integers(0, 999), min_size=1, max_size=120),
)
def test_words_of_ids_are_those_of_the_row(seed: int, position: int, ids: set[int]) -> None:
    chosen = np.array(sorted(ids), dtype=np.int32)
    row = words_of_row(seed, position, 1000)
    assert words_of_ids(seed, position, chosen).tolist() == row[chosen].tolist()


def test_words_are_pinned_forever() -> None:
    words = words_of_row(seed=42, position=7, count=3)
    assert words.tolist() == [noise_word(42, 7, token) for token in range(3)]
    assert [f"{word:016x}" for word in words.tolist()] == [
        "40caf910d7fafe56",
        "17651669b648fe8c",
        "434c2e7067bb5f4b",
    ]


def test_gumbel_is_finite_at_both_ends() -> None:
    low, high = gumbel(np.array([0, MASK], dtype=np.uint64)).tolist()
    assert low == pytest.approx(-math.log(53 * math.log(2)))
    assert high == pytest.approx(53 * math.log(2), abs=1e-9)


@given(words=st.lists(U64, min_size=1, max_size=40))
def test_gumbel_is_elementwise(words: list[int]) -> None:
    together = gumbel(np.array(words, dtype=np.uint64)).tolist()
    alone = [float(gumbel(np.array([word], dtype=np.uint64))[0]) for word in words]
    assert together == alone


def test_gumbel_grows_with_the_word() -> None:
    words = np.sort(words_of_row(1, 2, 5000))
    assert (np.diff(gumbel(words)) > -1e-12).all()
