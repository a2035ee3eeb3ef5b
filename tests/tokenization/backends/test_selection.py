"""Which backend serves a vocabulary, and that it is found out once."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends import selection
from outrider.tokenization.backends.equivalence import EquivalenceVerdict
from tests.e2e.tiny_models import write_tiny


def test_a_verdict_is_of_the_vocabulary_whichever_model_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested: list[str] = []

    def refusing(package: str, vocabulary: Vocabulary) -> EquivalenceVerdict:
        tested.append(package)
        return EquivalenceVerdict(package, "1", passed=False, reason="for this test")

    monkeypatch.setattr(selection, "check_equivalence", refusing)
    store = ModelStore(tmp_path / "store")
    for name, scale in (("one", 0.2), ("two", 0.3)):
        vocabulary = Vocabulary.from_gguf(write_tiny(tmp_path / f"{name}.gguf", scale))
        backend = selection.load_backend(store, vocabulary)
        assert "for this test" in backend.reason
        assert tested and len(tested) == len(set(tested))
