"""Block hashes: the same everywhere, and a name for the whole prefix."""

from __future__ import annotations

from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from outrider.codec.block_hashes import (
    HASH_BYTES,
    block_hash,
    block_hashes,
    inexact_salt,
    root_hash,
)

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=12)


def test_the_hash_is_what_the_protocol_says() -> None:
    root = blake2b(b"salt", digest_size=16).digest()
    first = blake2b(root + bytes.fromhex("0100000000000100"), digest_size=16).digest()
    second = blake2b(first + bytes.fromhex("ffffffff00000000"), digest_size=16).digest()
    assert root_hash(b"salt") == root
    assert list(block_hashes([1, 65536, 2**32 - 1, 0, 7], 2, b"salt")) == [first, second]
    assert len(first) == HASH_BYTES


@given(IDS, IDS, st.integers(1, 4), st.binary(max_size=3), st.binary(max_size=3))
def test_equal_hashes_mean_equal_prefixes(
    one: list[int], other: list[int], size: int, salt: bytes, other_salt: bytes
) -> None:
    ours = list(block_hashes(one, size, salt))
    theirs = list(block_hashes(other, size, other_salt))
    assert len(ours) == len(one) // size
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        end = (index + 1) * size
        assert (a == b) == (salt == other_salt and one[:end] == other[:end])


@given(IDS)
def test_a_chain_can_be_built_block_by_block(ids: list[int]) -> None:
    parent = root_hash(b"")
    for index, expected in enumerate(block_hashes(ids, 3, b"")):
        parent = block_hash(parent, ids[3 * index : 3 * index + 3])
        assert parent == expected


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_inexact_kv_has_names_of_its_own_in_every_group(one: bytes, other: bytes) -> None:
    assert root_hash(inexact_salt(one)) != root_hash(other) or not one
    assert (inexact_salt(one) == inexact_salt(other)) == (one == other)
    assert inexact_salt(b"") == b"", "who shares nothing still shares nothing"
