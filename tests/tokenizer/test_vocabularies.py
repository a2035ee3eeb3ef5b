"""Vocabularies: sent whole, cached for one salt, and two of one model while nodes are replaced."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio
import pytest

from outrider.codec.shipped import shipped_table
from outrider.codec.tokens import TokenCoder
from outrider.errors import (
    ArtifactCorruptError,
    MalformedFrameError,
    UnknownModelError,
    VocabularyMismatchError,
)
from outrider.models.vocabulary import Vocabulary
from outrider.rpc import from_rpc_error
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.packages import PACKAGES, installed_version
from outrider.tokenization.backends.selection import adopt_backend
from outrider.v1 import common_pb2, tokenizer_pb2
from outrider.wire import token_block_from_proto
from services.tokenizer.vocabularies import (
    ServedVocabulary,
    received_vocabulary,
    vocabulary_pieces,
)
from tests.tokenizer.running import MODEL, TokenizerUnderTest, running_tokenizer, successor

TEXT = "naïve café — 東京 🚄 مرحبا"


@pytest.fixture
async def service(vocabulary: Vocabulary) -> AsyncIterator[TokenizerUnderTest]:
    async with running_tokenizer(vocabulary) as service:
        yield service


def ids_of(block: common_pb2.TokenBlock, vocabulary: Vocabulary) -> list[int]:
    coder = TokenCoder(vocabulary.digest, vocabulary.size, shipped_table(vocabulary.tokens_digest))
    return list(coder.decode(token_block_from_proto(block), max_count=1 << 20))


async def test_get_vocabulary_is_enough_to_tokenize_alike(
    service: TokenizerUnderTest, vocabulary: Vocabulary
) -> None:
    request = tokenizer_pb2.GetVocabularyRequest()
    sent = [piece async for piece in service.stub.GetVocabulary(request)]
    assert len(sent) > 1 and not any(piece.digest for piece in sent[1:])
    theirs = received_vocabulary(sent)
    assert theirs.model == MODEL
    assert theirs.vocabulary.facts == vocabulary.facts
    assert theirs.vocabulary.tokenizer_json == vocabulary.tokenizer_json
    assert theirs.encoder.encode(TEXT).tolist() == vocabulary.encode(TEXT)
    for request, error in (
        (tokenizer_pb2.GetVocabularyRequest(model="x"), UnknownModelError),
        (tokenizer_pb2.GetVocabularyRequest(vocabulary_digest=b"x"), VocabularyMismatchError),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(service.stub.GetVocabulary(request)))
        assert isinstance(from_rpc_error(caught.value), error)


async def test_texts_are_found_again_by_requests_of_the_same_salt_alone(
    service: TokenizerUnderTest, vocabulary: Vocabulary
) -> None:
    text = "What one tenant says, nobody else can tell from a clock."

    async def num_hits(salt: bytes) -> float:
        request = tokenizer_pb2.EncodeRequest(number=1, text=text, cache_salt=salt)
        answer = (await service.encode([request]))[1]
        assert ids_of(answer.ids, vocabulary) == vocabulary.encode(text)
        (line,) = [
            line
            for line in (await service.admin("/metrics")).splitlines()
            if line.startswith('outrider_tokenization_cache_hits_total{content="document"}')
        ]
        return float(line.split()[-1])

    before = await num_hits(b"")
    found = [await num_hits(salt) - before for salt in (b"", b"a", b"a", b"b", b"b", b"")]
    assert found == [0, 0, 1, 1, 2, 2]


async def test_while_a_vocabulary_is_replaced_both_are_served(vocabulary: Vocabulary) -> None:
    new = successor(vocabulary)
    served = [ServedVocabulary.of(MODEL, new), ServedVocabulary.of(MODEL, vocabulary)]
    async with running_tokenizer(served, worker_processes=1) as service:
        requests = [
            tokenizer_pb2.EncodeRequest(number=n, text=TEXT, vocabulary_digest=digest)
            for n, digest in enumerate((b"", new.digest, vocabulary.digest, b"none"))
        ]
        answers = await service.encode(requests)
        found = [answers[n].vocabulary_digest for n in range(3)]
        assert found == [new.digest, new.digest, vocabulary.digest]
        assert answers[3].error.reason == VocabularyMismatchError.reason
        for old in (new, vocabulary):
            text = tokenizer_pb2.TokenizeRequest(text=TEXT, vocabulary_digest=old.digest)
            blocks = [answer async for answer in service.stub.Tokenize(iter([text]))]
            assert [block.vocabulary_digest for block in blocks] == [old.digest]
            assert ids_of(blocks[0].ids, old) == vocabulary.encode(TEXT)


def test_a_receiver_uses_the_senders_backend_in_the_same_versions(vocabulary: Vocabulary) -> None:
    package = next(filter(installed_version, PACKAGES), None)
    if package is None:
        pytest.skip("no fast backend is installed: pip install 'outrider[fast-tokenizers]'")
    sent = list(
        vocabulary_pieces(
            ServedVocabulary.of(MODEL, vocabulary, adopt_backend(vocabulary, package, "test"))
        )
    )
    theirs = received_vocabulary(sent).encoder
    assert theirs.backend.name == package
    assert theirs.encode(TEXT).tolist() == vocabulary.encode(TEXT)
    sent[0].backend.version = "0"
    assert received_vocabulary(sent).encoder.backend.name == REFERENCE


def test_a_vocabulary_that_is_cut_short_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(MalformedFrameError):
        received_vocabulary([])
    with pytest.raises(ArtifactCorruptError):
        received_vocabulary(list(vocabulary_pieces(ServedVocabulary.of(MODEL, vocabulary)))[:1])
