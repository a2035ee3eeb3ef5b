"""The vocabulary of a run, where its texts may be cut, and the backend it is used with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outrider.errors import ConfigError
from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.selection import load_backend, select_backend
from outrider.tokenization.cut_proofs import rule_of
from outrider.tokenization.cuts import CutRule

_LINE: Final = "A line of text, and 1 number.\n"


@dataclass(frozen=True, slots=True)
class LoadedVocabulary:
    """All that encodes, ready."""

    vocabulary: Vocabulary
    backend: FallbackBackend
    rule: CutRule | None
    """None if no rule for cutting its texts is proven."""
    model: str = ""
    """Of the catalogue; empty: it is of a file."""

    @classmethod
    def of(
        cls, vocabulary: Vocabulary, backend: FallbackBackend, model: str = ""
    ) -> LoadedVocabulary:
        """Load a vocabulary and encode once, so that what backends build at first use exists before
        processes are forked."""
        for one in backend.both:
            one.encode(_LINE)
        return cls(vocabulary, backend, rule_of(vocabulary.tokenizer_json), model)


def of_model(name: str, backend: str) -> LoadedVocabulary:
    """The vocabulary of a model of the catalogue, which is fetched if need be. Raises
    UnknownModelError, ModelStoreError, ConfigError."""
    spec, store = lookup(name), ModelStore(default_root())
    vocabulary = load_vocabulary(spec, store)
    return LoadedVocabulary.of(vocabulary, load_backend(store, vocabulary, backend), spec.name)


def of_file(path: Path, backend: str) -> LoadedVocabulary:
    """The vocabulary of a GGUF file or a Hugging Face `tokenizer.json`; the equivalence test takes
    some seconds. Raises ArtifactCorruptError, ConfigError, OSError."""
    if path.suffix == ".gguf":
        vocabulary = Vocabulary.from_gguf(path)
    elif path.suffix == ".json":
        vocabulary = Vocabulary.from_tokenizer_json(path.read_text("utf-8"))
    else:
        raise ConfigError(f"{path}: a vocabulary is a .gguf file or a tokenizer.json")
    return LoadedVocabulary.of(vocabulary, select_backend(vocabulary, backend))
