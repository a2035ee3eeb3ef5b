"""Rank tables: a permutation, its file form, and the table that is shipped."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.codec.ranks import RankTable
from outrider.codec.shipped import shipped_table
from outrider.errors import ArtifactCorruptError
from outrider.models.vocabulary import Vocabulary

DIGEST = bytes(range(32))


@given(st.integers(1, 200), st.data())
def test_a_table_is_a_permutation_and_survives_its_file_form(
    size: int, data: st.DataObject
) -> None:
    top = data.draw(st.lists(st.integers(0, size - 1), unique=True))
    table = RankTable(DIGEST, size, top, version=7)
    assert table.to_id[: len(top)].tolist() == top
    assert table.to_id[table.to_rank].tolist() == list(range(size))
    rest = table.to_id[len(top) :].tolist()
    assert rest == sorted(rest)
    again = RankTable.from_bytes(table.to_bytes())
    assert again.to_id.tolist() == table.to_id.tolist()
    assert (again.tokens_digest, again.vocabulary_size, again.version) == (DIGEST, size, 7)


def test_wide_vocabularies_store_wide_ids() -> None:
    table = RankTable(DIGEST, 200_000, [199_999, 70_000])
    assert RankTable.from_bytes(table.to_bytes()).to_id[:2].tolist() == [199_999, 70_000]


@pytest.mark.parametrize("top", [[1, 1], [10], [3, 11]])
def test_the_top_must_be_distinct_ids(top: list[int]) -> None:
    with pytest.raises(ValueError, match="distinct ids"):
        RankTable(DIGEST, 10, top)


def test_damage_is_noticed() -> None:
    data = RankTable(DIGEST, 1000, range(50)).to_bytes()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(ArtifactCorruptError, match="install the package again"):
            RankTable.from_bytes(bytes(damaged))
        with pytest.raises(ArtifactCorruptError):
            RankTable.from_bytes(data[:at])


def test_an_unknown_vocabulary_has_no_table() -> None:
    assert shipped_table(bytes(32)) is None


@pytest.mark.model
def test_the_shipped_table_is_the_default_models_and_never_changes(
    vocabulary: Vocabulary,
) -> None:
    table = shipped_table(vocabulary.tokens_digest)
    assert table is not None
    assert (table.vocabulary_size, table.version, table.num_top) == (vocabulary.size, 1, 4096)
    # A peer may hold this table already: another one needs a new version and codec number.
    pinned = "c93fe26aef5979fe4ecb4f500077f195b456da5219adc852817d8ec7724240a7"
    assert hashlib.sha256(table.to_bytes()).hexdigest() == pinned
