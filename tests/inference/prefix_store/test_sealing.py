"""Entries that only who knows the secret can find, read or make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.prefix_store.sealing import PREFIX, RUN_BLOCKS, Sealer

SEALER = Sealer("secret " * 8, b"identity")
(NAME,) = SEALER.names([b"h" * 16])


@given(st.binary(max_size=200))
def test_what_is_sealed_opens_under_its_name_alone(frame: bytes) -> None:
    value = SEALER.seal(NAME, frame)
    assert SEALER.open(NAME, value) == frame
    (other,) = SEALER.names([b"i" * 16])
    assert SEALER.open(other, value) is None


@given(st.binary(max_size=100))
def test_garbage_does_not_open(value: bytes) -> None:
    assert SEALER.open(NAME, value) is None


@pytest.mark.parametrize(
    "other", [Sealer("another " * 8, b"identity"), Sealer("secret " * 8, b"other weights")]
)
def test_another_secret_or_model_finds_and_opens_nothing(other: Sealer) -> None:
    assert other.names([b"h" * 16]) != [NAME]
    assert other.open(NAME, SEALER.seal(NAME, b"frame")) is None


def test_a_name_tells_nothing_but_what_it_is() -> None:
    assert NAME.startswith(PREFIX) and len(NAME) == len(PREFIX) + 10 + 32
    assert SEALER.names([b"h" * 16]) == [NAME]


def test_a_run_of_blocks_has_one_tag_whatever_comes_behind_it() -> None:
    hashes = [bytes([index]) * 16 for index in range(2 * RUN_BLOCKS + 3)]
    names = SEALER.names(hashes)
    tags = [name[len(PREFIX) : len(PREFIX) + 10] for name in names]
    assert [tags.count(tag) for tag in dict.fromkeys(tags)] == [RUN_BLOCKS, RUN_BLOCKS, 3]
    assert all(tag[:1] + tag[-1:] == b"{}" for tag in tags)
    assert SEALER.names(hashes[: RUN_BLOCKS + 1]) == names[: RUN_BLOCKS + 1]
    assert len(set(names)) == len(names)


def test_there_has_to_be_a_secret() -> None:
    with pytest.raises(ValueError, match="secret"):
        Sealer("", b"identity")
