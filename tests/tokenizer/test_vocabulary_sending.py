"""A vocabulary that is sent stays in memory while it is read, but not for one who does not read."""

from __future__ import annotations

import gc
import weakref
from contextlib import aclosing

import grpc.aio
import pytest

from outrider.errors import DeadlineError, OverloadedError
from outrider.models.vocabulary import Vocabulary
from outrider.rpc import from_rpc_error
from outrider.testing import eventually
from outrider.v1 import tokenizer_pb2
from services.tokenizer.served_models import ServedModels
from services.tokenizer.vocabularies import ServedVocabulary
from services.tokenizer.vocabulary_sending import send_vocabulary
from tests.edge.integration.region import small_vocabulary
from tests.tokenizer.running import running_tokenizer

WORDS = small_vocabulary()


def load(model: str) -> tuple[ServedVocabulary, ...]:
    """Another one each time."""
    return (ServedVocabulary.of(model, Vocabulary(WORDS.tokenizer_json, WORDS.facts)),)


async def other_is_refused(models: ServedModels) -> bool:
    """Whether another vocabulary finds no place."""
    try:
        async with models.using("b"):
            return False
    except OverloadedError:
        return True


async def test_who_reads_keeps_the_vocabulary_until_the_end() -> None:
    models = ServedModels(load, "ab", 1)
    request = tokenizer_pb2.GetVocabularyRequest(model="a")
    async with aclosing(send_vocabulary(models, request, 60.0)) as pieces:
        async for piece in pieces:
            assert piece.model == "a"
            assert await other_is_refused(models)
    assert not await other_is_refused(models)


async def test_who_leaves_gives_it_back() -> None:
    models = ServedModels(load, "ab", 1)
    request = tokenizer_pb2.GetVocabularyRequest(model="a")
    pieces = send_vocabulary(models, request, 60.0)
    await anext(pieces)
    await pieces.aclose()
    assert not await other_is_refused(models)


async def test_who_does_not_read_does_not_keep_it() -> None:
    models = ServedModels(load, "ab", 1)
    request = tokenizer_pb2.GetVocabularyRequest(model="a")
    pieces = send_vocabulary(models, request, 0.05)
    await anext(pieces)
    (served,) = models.loaded()
    kept = weakref.ref(served.vocabulary)
    del served
    models.configure(load, "b")  # only who uses a keeps it

    await eventually(lambda: not models.loaded())
    gc.collect()
    assert kept() is None
    with pytest.raises(DeadlineError, match=r"not read within 0\.05 s"):
        await anext(pieces)
    await models.close()


async def test_a_slow_reader_is_told_so(vocabulary: Vocabulary) -> None:
    async with running_tokenizer(vocabulary, vocabulary_timeout_s=1e-6) as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [
                piece
                async for piece in service.stub.GetVocabulary(tokenizer_pb2.GetVocabularyRequest())
            ]
    assert isinstance(from_rpc_error(caught.value), DeadlineError)
