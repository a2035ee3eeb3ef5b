"""The vocabulary of a run and the backend it is used with."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tokenizers import Tokenizer

from outrider.errors import ArtifactCorruptError, ConfigError
from outrider.models.catalog import lookup
from outrider.models.store import ModelStore, default_root
from outrider.models.vocabulary import Vocabulary, VocabularyFacts, load_vocabulary
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.selection import load_backend, select_backend


def of_model(name: str, backend: str) -> tuple[Vocabulary, FallbackBackend]:
    """The vocabulary of a model of the catalogue, which is fetched if need be. Raises
    UnknownModelError, ModelStoreError, ConfigError."""
    spec, store = lookup(name), ModelStore(default_root())
    vocabulary = load_vocabulary(spec, store)
    return vocabulary, load_backend(spec, store, vocabulary, backend)


def of_file(path: Path, backend: str) -> tuple[Vocabulary, FallbackBackend]:
    """The vocabulary of a GGUF file or a Hugging Face `tokenizer.json`; the equivalence test takes
    some seconds. Raises ArtifactCorruptError, ConfigError, OSError."""
    if path.suffix == ".gguf":
        vocabulary = Vocabulary.from_gguf(path)
    elif path.suffix == ".json":
        vocabulary = of_tokenizer_json(path.read_text("utf-8"))
    else:
        raise ConfigError(f"{path}: a vocabulary is a .gguf file or a tokenizer.json")
    return vocabulary, select_backend(vocabulary, backend)


def of_tokenizer_json(text: str) -> Vocabulary:
    """Without chat template; its digest is the text's. Raises ArtifactCorruptError, ConfigError."""
    try:
        tokenizer = Tokenizer.from_str(text)
        added = json.loads(text)["added_tokens"]
    except Exception as error:  # the library raises bare Exception
        raise ArtifactCorruptError(f"this is no tokenizer.json: {error}") from error
    size = tokenizer.get_vocab_size()
    if max(tokenizer.get_vocab().values(), default=-1) != size - 1:
        raise ConfigError("some ids of this tokenizer have no token: it cannot be used")
    control = tuple(sorted(token["id"] for token in added if token["special"]))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Vocabulary(text, VocabularyFacts(digest, size, (), control, "", "", ""))
