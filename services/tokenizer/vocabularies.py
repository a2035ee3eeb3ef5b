"""A vocabulary with its tokenizer and token block coder; and its transfer to edges and workers, in
messages of limited size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.errors import MalformedFrameError
from outrider.models.vocabulary import Vocabulary, VocabularyFacts
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.packages import installed_version
from outrider.tokenization.backends.selection import adopt_backend, select_backend
from outrider.tokenization.cut_proofs import rule_of
from outrider.tokenization.encoder import CachingEncoder, SharedCache
from outrider.tokenization.segment_cache import CachePolicy
from outrider.v1 import tokenizer_pb2

MakeSharedCache = Callable[[Vocabulary, FallbackBackend], SharedCache]
"""Makes a vocabulary's shared cache, for the ids that its backend gives."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The caches of texts' ids."""

    own: CachePolicy = field(default_factory=CachePolicy)
    """In this process, for each vocabulary."""
    make_shared: MakeSharedCache | None = None


@dataclass(frozen=True, slots=True)
class ServedVocabulary:
    """One model's vocabulary and what encodes with it. Thread-safe."""

    model: str
    vocabulary: Vocabulary
    coder: TokenCoder
    encoder: CachingEncoder

    @classmethod
    def of(
        cls,
        model: str,
        vocabulary: Vocabulary,
        backend: FallbackBackend | None = None,
        caches: CacheSettings | None = None,
    ) -> ServedVocabulary:
        """A vocabulary with its shipped rank table, if one exists. `backend` encodes; None: the
        reference."""
        digest = vocabulary.digest
        coder = TokenCoder(digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))
        caches = caches or CacheSettings()
        backend = backend or select_backend(vocabulary, REFERENCE)
        shared = caches.make_shared(vocabulary, backend) if caches.make_shared else None
        cuts = rule_of(vocabulary.tokenizer_json)
        encoder = CachingEncoder(vocabulary, backend, caches.own, shared, cuts)
        return cls(model, vocabulary, coder, encoder)


PIECE_CHARS: Final = 1 << 18
"""Characters of the tokenizer's definition in one message."""

_Piece = tokenizer_pb2.GetVocabularyResponse
_log = structlog.get_logger()


def vocabulary_pieces(served: ServedVocabulary) -> Iterator[_Piece]:
    """The messages for `received_vocabulary`; all but the tokenizer is in the first."""
    facts = served.vocabulary.facts
    definition = served.vocabulary.tokenizer_json
    yield _Piece(
        model=served.model,
        digest=served.vocabulary.digest,
        size=served.vocabulary.size,
        tokenizer_json=definition[:PIECE_CHARS],
        chat_template=facts.chat_template,
        stop_ids=facts.stop_ids,
        control_ids=facts.control_ids,
        bos_token=facts.bos_token,
        eos_token=facts.eos_token,
        backend=_backend_message(served.encoder.backend),
    )
    for start in range(PIECE_CHARS, len(definition), PIECE_CHARS):
        yield _Piece(tokenizer_json=definition[start : start + PIECE_CHARS])


def received_vocabulary(messages: Sequence[_Piece]) -> ServedVocabulary:
    """The vocabulary of `vocabulary_pieces`. Blocks for some tenths of a second. Raises
    MalformedFrameError for no messages, ArtifactCorruptError if they do not belong together."""
    if not messages:
        raise MalformedFrameError("a vocabulary came without a message")
    first = messages[0]
    facts = VocabularyFacts(
        digest_hex=first.digest.hex(),
        size=first.size,
        stop_ids=tuple(first.stop_ids),
        control_ids=tuple(first.control_ids),
        chat_template=first.chat_template,
        bos_token=first.bos_token,
        eos_token=first.eos_token,
    )
    vocabulary = Vocabulary("".join(message.tokenizer_json for message in messages), facts)
    return ServedVocabulary.of(
        first.model, vocabulary, _received_backend(vocabulary, first.backend)
    )


def _backend_message(backend: FallbackBackend) -> tokenizer_pb2.TokenizerBackend:
    if not backend.is_fast:
        return tokenizer_pb2.TokenizerBackend()
    return tokenizer_pb2.TokenizerBackend(
        name=backend.name,
        version=installed_version(backend.name) or "",
        reference_version=installed_version(REFERENCE) or "",
    )


def _received_backend(
    vocabulary: Vocabulary, sent: tokenizer_pb2.TokenizerBackend
) -> FallbackBackend:
    """The sender's backend if both ends have the same versions of the packages, else the reference:
    the equivalence test holds for the versions it was made with."""
    ours = (installed_version(sent.name), installed_version(REFERENCE)) if sent.name else ()
    if ours == (sent.version, sent.reference_version):
        return adopt_backend(
            vocabulary, sent.name, "the service found it equal, in the same versions"
        )
    if sent.name:
        _log.warning("tokenizer_backend_not_used", backend=sent.name, service=sent.version)
    return adopt_backend(
        vocabulary, REFERENCE, "the service uses it, or has other versions of packages"
    )
