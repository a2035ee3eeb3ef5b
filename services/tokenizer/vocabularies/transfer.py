"""A vocabulary on its way to those who tokenize by themselves: in pieces, for it may be large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import structlog

from outrider.errors import MalformedFrameError
from outrider.models.vocabulary import Vocabulary, VocabularyFacts
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.backends.packages import installed_version
from outrider.tokenization.backends.selection import adopt_backend
from outrider.v1 import tokenizer_pb2
from services.tokenizer.vocabularies.served import Served

PIECE_CHARS: Final = 1 << 18

_Piece = tokenizer_pb2.GetVocabularyResponse
_log = structlog.get_logger()


def pieces(served: Served) -> Iterator[_Piece]:
    """The messages for `received`: everything but most of the tokenizer is in the first."""
    facts, definition = served.vocabulary.facts, served.vocabulary.tokenizer_json
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
        backend=_told(served.encoder.backend),
    )
    for start in range(PIECE_CHARS, len(definition), PIECE_CHARS):
        yield _Piece(tokenizer_json=definition[start : start + PIECE_CHARS])


def received(messages: Sequence[_Piece]) -> Served:
    """What was sent. Blocks for some tenths of a second. Raises MalformedFrameError for no
    messages, ArtifactCorruptError for those that do not belong together."""
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
    return Served.of(first.model, vocabulary, _adopted(vocabulary, first.backend))


def _told(backend: FallbackBackend) -> tokenizer_pb2.TokenizerBackend:
    if not backend.is_fast:
        return tokenizer_pb2.TokenizerBackend()
    return tokenizer_pb2.TokenizerBackend(
        name=backend.name,
        version=installed_version(backend.name) or "",
        reference_version=installed_version(REFERENCE) or "",
    )


def _adopted(vocabulary: Vocabulary, told: tokenizer_pb2.TokenizerBackend) -> FallbackBackend:
    """The sender's backend, if both ends have the same versions; what was found of others holds
    for those alone."""
    ours = (installed_version(told.name), installed_version(REFERENCE)) if told.name else ()
    if ours == (told.version, told.reference_version):
        return adopt_backend(
            vocabulary, told.name, "the service found it equal, in the same versions"
        )
    if told.name:
        _log.warning("tokenizer backend not used", backend=told.name, service=told.version)
    return adopt_backend(
        vocabulary, REFERENCE, "the service uses it, or has other versions of packages"
    )
