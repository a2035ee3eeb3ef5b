"""The vocabulary of a run and the backend it is used with."""

from __future__ import annotations

from pathlib import Path

from outrider.errors import ConfigError
from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, load_vocabulary
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.selection import load_backend, select_backend


def of_model(name: str, backend: str) -> tuple[Vocabulary, FallbackBackend]:
    """The vocabulary of a model of the catalogue, which is fetched if need be. Raises
    UnknownModelError, ModelStoreError, ConfigError."""
    spec, store = lookup(name), ModelStore(default_root())
    vocabulary = load_vocabulary(spec, store)
    return vocabulary, load_backend(store, vocabulary, backend)


def of_file(path: Path, backend: str) -> tuple[Vocabulary, FallbackBackend]:
    """The vocabulary of a GGUF file or a Hugging Face `tokenizer.json`; the equivalence test takes
    some seconds. Raises ArtifactCorruptError, ConfigError, OSError."""
    if path.suffix == ".gguf":
        vocabulary = Vocabulary.from_gguf(path)
    elif path.suffix == ".json":
        vocabulary = Vocabulary.from_tokenizer_json(path.read_text("utf-8"))
    else:
        raise ConfigError(f"{path}: a vocabulary is a .gguf file or a tokenizer.json")
    return vocabulary, select_backend(vocabulary, backend)
