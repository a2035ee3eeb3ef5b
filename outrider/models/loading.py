"""Loads a model's vocabulary through the model store."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from outrider.models.catalog import ModelSpec
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary

_DERIVED_NAME: Final = "vocabulary-v1"
"""A new number whenever the files or what they mean change."""


def load_vocabulary(spec: ModelSpec, store: ModelStore) -> Vocabulary:
    """The vocabulary of `spec`; the model is fetched if the store lacks it.

    Parsing the model file takes seconds, so its result is kept in the store beside the model,
    verified on every load. Blocks: call it before an event loop runs, or in a thread. Raises
    what ModelStore.ensure, ModelStore.derived and Vocabulary.from_gguf raise.
    """
    artifact = store.ensure(spec.source, sha256=spec.sha256)

    def build(folder: Path) -> None:
        Vocabulary.from_gguf(artifact.path).save(folder)

    return Vocabulary.load(store.derived(artifact, _DERIVED_NAME, build))
