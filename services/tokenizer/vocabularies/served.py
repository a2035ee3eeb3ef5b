"""The vocabularies one service serves, each with its tokenizer and its token blocks' coder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.errors import UnknownModelError, VocabularyMismatchError
from outrider.models.catalog import lookup
from outrider.models.loading import load_vocabulary
from outrider.models.store import ModelStore
from outrider.models.vocabulary import Vocabulary
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.choice import AUTO, choose, load_backend
from outrider.tokenization.backends.guarded import Guarded
from outrider.tokenization.front.cache import CachePolicy
from outrider.tokenization.front.encoder import CachingEncoder, SharedTokens

Share = Callable[[Vocabulary, Guarded], SharedTokens]
"""Makes what a vocabulary shares with other processes, of what its backend gives."""


@dataclass(frozen=True, slots=True)
class Caches:
    """What is kept of texts."""

    own: CachePolicy = field(default_factory=CachePolicy)
    """In this process, for each vocabulary."""
    share: Share | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """One model's vocabulary. Thread-safe, as its parts are."""

    model: str
    vocabulary: Vocabulary
    coder: TokenCoder
    encoder: CachingEncoder

    @classmethod
    def of(
        cls,
        model: str,
        vocabulary: Vocabulary,
        backend: Guarded | None = None,
        caches: Caches | None = None,
    ) -> Served:
        """With the rank table shipped for this vocabulary, if there is one. `backend` encodes;
        None: the reference."""
        digest = vocabulary.digest
        coder = TokenCoder(digest, vocabulary.size, shipped_table(digest))
        caches = caches or Caches()
        guarded = backend or choose(vocabulary, REFERENCE)
        shared = caches.share(vocabulary, guarded) if caches.share else None
        encoder = CachingEncoder(vocabulary, guarded, caches.own, shared)
        return cls(model, vocabulary, coder, encoder)


class Vocabularies:
    """Served vocabularies by model name and digest."""

    def __init__(self, served: Iterable[Served]) -> None:
        """At least one; the first is the default. The first of a model is its current one, the
        others are served to those who ask for their digest."""
        self._served = tuple(served)
        self._current = {entry.model: entry for entry in reversed(self._served)}

    @classmethod
    def load(
        cls,
        models: Iterable[str],
        store: ModelStore,
        *,
        backend: str = AUTO,
        caches: Caches | None = None,
        replaced: Iterable[tuple[str, Path]] = (),
    ) -> Vocabularies:
        """Load from the model store; blocks. `replaced`: models and the folders of vocabularies
        (`Vocabulary.save`) that they had before, served beside the current ones. Raises
        UnknownModelError, ModelStoreError, ConfigError for a backend that does not exist."""
        served = []
        for name in models:
            spec = lookup(name)
            vocabulary = load_vocabulary(spec, store)
            guarded = load_backend(spec, store, vocabulary, backend)
            served.append(Served.of(name, vocabulary, guarded, caches))
        for name, folder in replaced:
            vocabulary = Vocabulary.load(folder)
            served.append(Served.of(name, vocabulary, choose(vocabulary, backend), caches))
        return cls(served)

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served)

    def find(self, model: str, digest: bytes = b"") -> Served:
        """The vocabulary of a model, the default for "", with that digest if one is given.

        Raises UnknownModelError, and VocabularyMismatchError for a digest that is not served.
        """
        current = self._current.get(model) if model else self._served[0]
        if current is None:
            raise UnknownModelError(
                f"No vocabulary of model {model[:100]!r} here: use {', '.join(self._current)}."
            )
        if digest in (b"", current.vocabulary.digest):
            return current
        for entry in self._served:
            if entry.model == current.model and entry.vocabulary.digest == digest:
                return entry
        ours = current.vocabulary.digest
        raise VocabularyMismatchError(
            f"Vocabulary {digest.hex()} of model {current.model} is not served here, "
            f"{ours.hex()} is: use the model's own, or ask a tokenizer that has yours.",
            metadata={"ours": ours.hex(), "theirs": digest.hex()},
        )
