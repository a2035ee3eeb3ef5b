"""The small vocabulary, made once."""

from __future__ import annotations

import pytest

from outrider.models.vocabulary import Vocabulary
from tests.edge.integration.region import small_vocabulary


@pytest.fixture(scope="session")
def words() -> Vocabulary:
    """One token per byte."""
    return small_vocabulary()
