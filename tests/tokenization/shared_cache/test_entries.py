"""Names tell nothing and are nobody else's; values that were not made for a name are not read."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.codec import varint
from outrider.tokenization.shared_cache.entries import MIN_VALUE_BYTES, Entries

DIGEST = bytes(range(32))
ENTRIES = Entries("secret", DIGEST, 1000)
IDS = st.lists(st.integers(0, 999), max_size=200).map(lambda ids: array("I", ids))


@given(IDS)
def test_a_value_gives_its_ids_back_under_its_name_alone(ids: array[int]) -> None:
    name = ENTRIES.name("text", b"salt", "backend")
    value = ENTRIES.value(name, ids)
    assert ENTRIES.ids(name, value) == ids
    assert ENTRIES.ids(ENTRIES.name("texts", b"salt", "backend"), value) is None
    assert Entries("other", DIGEST, 1000).ids(name, value) is None
    assert Entries("secret", bytes(32), 1000).ids(name, value) is None


@given(IDS, st.data())
def test_a_changed_or_cut_value_is_not_read(ids: array[int], data: st.DataObject) -> None:
    name = ENTRIES.name("text", b"", "backend")
    value = ENTRIES.value(name, ids)
    at = data.draw(st.integers(0, len(value) - 1))
    changed = bytearray(value)
    changed[at] ^= data.draw(st.integers(1, 255))
    assert ENTRIES.ids(name, bytes(changed)) is None
    assert ENTRIES.ids(name, value[:at]) is None


@given(IDS)
def test_a_value_shows_neither_ids_nor_how_many(ids: array[int]) -> None:
    name = ENTRIES.name("text", b"", "backend")
    value = ENTRIES.value(name, ids)
    length = len(value) - 16
    assert length >= MIN_VALUE_BYTES and length & (length - 1) == 0
    assert length < 2 * max(MIN_VALUE_BYTES, 4 + 2 * len(ids) + 1)
    packed = varint.encode_array(np.frombuffer(ids, dtype=np.uint32))
    assert len(packed) < 4 or packed not in value
    assert value == ENTRIES.value(name, ids), "two processes write the same"
    assert value != ENTRIES.value(ENTRIES.name("other", b"", "backend"), ids)


def test_numbers_in_front_of_zeros_are_read_up_to_their_count() -> None:
    name = ENTRIES.name("text", b"", "backend")
    for ids in ([0], [0, 0, 0], [128, 0], [], list(range(300))):
        numbers = array("I", ids)
        assert ENTRIES.ids(name, ENTRIES.value(name, numbers)) == numbers


def test_ids_outside_the_vocabulary_are_not_read() -> None:
    name = ENTRIES.name("text", b"", "backend")
    assert ENTRIES.ids(name, ENTRIES.value(name, array("I", [1000]))) is None


@given(st.lists(st.tuples(st.text(max_size=4), st.binary(max_size=4), st.text("ab", max_size=4))))
def test_names_differ_wherever_text_scope_or_maker_do(parts: list[tuple[str, bytes, str]]) -> None:
    names = {ENTRIES.name(*part) for part in parts}
    assert len(names) == len(set(parts))


@given(st.text(min_size=16))
def test_a_name_does_not_show_its_text(text: str) -> None:
    """Of a text too long to stand in a digest by chance."""
    assert text.encode() not in ENTRIES.name(text, b"", "backend")


def test_a_new_vocabulary_has_other_names() -> None:
    new = Entries("secret", bytes(32), 1000)
    assert new.name("text", b"", "backend") != ENTRIES.name("text", b"", "backend")


def test_a_secret_is_needed() -> None:
    with pytest.raises(ValueError, match="secret"):
        Entries("", DIGEST, 1000)
