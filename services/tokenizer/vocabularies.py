"""The vocabularies one service serves, each with the coder of its token blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from outrider.codec.ranks import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.errors import UnknownModelError, VocabularyMismatchError
from outrider.models.catalog import lookup
from outrider.models.loading import load_vocabulary
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Served:
    """One model's vocabulary. Thread-safe, as its parts are."""

    model: str
    vocabulary: Vocabulary
    coder: TokenCoder

    @classmethod
    def of(cls, model: str, vocabulary: Vocabulary) -> Served:
        """With the rank table shipped for this vocabulary, if there is one."""
        digest = vocabulary.digest
        coder = TokenCoder(digest, vocabulary.size, shipped_table(digest))
        return cls(model, vocabulary, coder)

    def check_digest(self, theirs: bytes) -> None:
        """Raises VocabularyMismatchError for ids of another vocabulary; empty is not checked."""
        ours = self.vocabulary.digest
        if theirs not in (b"", ours):
            raise VocabularyMismatchError(
                f"The ids are of vocabulary {theirs.hex()} but model {self.model} has "
                f"{ours.hex()}: decode them with their own model.",
                metadata={"ours": ours.hex(), "theirs": theirs.hex()},
            )


class Vocabularies:
    """Served vocabularies by model name."""

    def __init__(self, served: Iterable[Served]) -> None:
        """At least one; the first is the default."""
        self._served: Mapping[str, Served] = {entry.model: entry for entry in served}
        self._default = next(iter(self._served.values()))

    @classmethod
    def load(cls, models: Iterable[str], store: ModelStore) -> Vocabularies:
        """Load from the model store; blocks. Raises UnknownModelError, ModelStoreError."""
        return cls(Served.of(name, load_vocabulary(lookup(name), store)) for name in models)

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def find(self, model: str) -> Served:
        """The vocabulary of a model, the default for "". Raises UnknownModelError."""
        if not model:
            return self._default
        try:
            return self._served[model]
        except KeyError:
            raise UnknownModelError(
                f"No vocabulary of model {model[:100]!r} here: use {', '.join(self._served)}."
            ) from None
