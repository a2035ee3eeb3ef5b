"""The file form of a prior, and the one that is shipped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ArtifactCorruptError
from outrider.models.vocabulary import Vocabulary
from outrider.speculation.ngrams import keys, pack, unpack
from outrider.speculation.shipped import NUM_ORDERS, prior_from_bytes, prior_to_bytes, shipped_prior

DIGEST = bytes(range(32))
TABLE = st.dictionaries(st.integers(0, 2**60 - 1), st.integers(1, 2**24 - 1), max_size=20)
TABLES = st.lists(TABLE, min_size=NUM_ORDERS, max_size=NUM_ORDERS)


@given(TABLES)
def test_round_trip(tables: list[dict[int, int]]) -> None:
    digest, prior = prior_from_bytes(prior_to_bytes(DIGEST, tables))
    assert digest == DIGEST
    assert list(prior.tables) == tables


@pytest.mark.parametrize("at", [0, 4, 45, 60, -1])
def test_damage_is_found(at: int) -> None:
    tables = [{order: pack(order, 1)} for order in range(1, NUM_ORDERS + 1)]
    data = bytearray(prior_to_bytes(DIGEST, tables))
    data[at] ^= 1
    with pytest.raises(ArtifactCorruptError, match="install the package again"):
        prior_from_bytes(bytes(data))
    with pytest.raises(ArtifactCorruptError):
        prior_from_bytes(bytes(data[:30]))


def test_the_default_models_prior_speaks_its_language(vocabulary: Vocabulary) -> None:
    prior = shipped_prior(vocabulary.tokens_digest)
    assert prior is not None
    for table in prior.tables:
        assert all(unpack(value)[0] < vocabulary.size for value in table.values())
    found = prior.find(keys(vocabulary.encode("It is one of the most")))
    assert found is not None and vocabulary.decode([found[0]]).strip().isalpha()


def test_an_unknown_vocabulary_has_none() -> None:
    assert shipped_prior(DIGEST) is None
