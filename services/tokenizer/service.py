"""TokenizerService over grpc.aio."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc.aio
import structlog

from outrider.errors import OutriderError, OverloadedError
from outrider.telemetry import names
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.tracing import span
from outrider.tokenization.pool.metrics import TokenizationMetrics
from outrider.tokenization.pool.pool import Layer
from outrider.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from outrider.wire.errors import to_detail
from services.tokenizer.parts.crew import Crew
from services.tokenizer.parts.detokenizing import Detokenizing
from services.tokenizer.parts.texts import LongTexts
from services.tokenizer.requests import Answering, kind_of
from services.tokenizer.streams import AnswerStream
from services.tokenizer.vocabularies import transfer
from services.tokenizer.workers import Workers

REQUESTS: Final = "outrider.tokenizer.requests"
TOKENS: Final = "outrider.tokenizer.tokens"

Context = grpc.aio.ServicerContext[Any, Any]
RequestT = TypeVar("RequestT", tokenizer_pb2.EncodeRequest, tokenizer_pb2.DecodeRequest)
AnswerT = TypeVar("AnswerT", tokenizer_pb2.EncodeResponse, tokenizer_pb2.DecodeResponse)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Counts:
    """Where requests and what became of their texts are counted."""

    metrics: Metrics
    tokenized: TokenizationMetrics

    def tokens(self, operation: str, count: int) -> None:
        """So many ids were made, or read."""
        self.metrics.counter(TOKENS).add(count, {"operation": operation})


class TokenizerWorkService(tokenizer_pb2_grpc.TokenizerWorkServiceServicer):
    """Where workers get the parts of long texts."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    async def Work(
        self, request_iterator: AsyncIterator[tokenizer_pb2.WorkRequest], context: Context
    ) -> AsyncIterator[tokenizer_pb2.WorkResponse]:
        """One worker's stay."""
        async with aclosing(self._crew.work(request_iterator)) as parts:
            async for part in parts:
                yield part


class TokenizerService(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Answers every request on its own: a bad one fails alone, its stream lives on."""

    def __init__(
        self,
        answering: Answering,
        workers: Workers,
        long_texts: LongTexts,
        detokenizing: Detokenizing,
        counts: Counts,
        *,
        max_in_flight: int,
    ) -> None:
        self._answering = answering
        self._workers = workers
        self._long_texts = long_texts
        self._detokenizing = detokenizing
        self._counts = counts
        self._max_in_flight = max_in_flight

    async def Encode(
        self, request_iterator: AsyncIterator[tokenizer_pb2.EncodeRequest], context: Context
    ) -> AsyncIterator[tokenizer_pb2.EncodeResponse]:
        """Texts to ids."""
        stream = AnswerStream(request_iterator, self._encode, max_in_flight=self._max_in_flight)
        async with aclosing(stream.answers()) as answers:
            async for answer in answers:
                yield answer

    async def Decode(
        self, request_iterator: AsyncIterator[tokenizer_pb2.DecodeRequest], context: Context
    ) -> AsyncIterator[tokenizer_pb2.DecodeResponse]:
        """Ids to texts."""
        stream = AnswerStream(request_iterator, self._decode, max_in_flight=self._max_in_flight)
        async with aclosing(stream.answers()) as answers:
            async for answer in answers:
                yield answer

    async def GetVocabulary(
        self, request: tokenizer_pb2.GetVocabularyRequest, context: Context
    ) -> AsyncIterator[tokenizer_pb2.GetVocabularyResponse]:
        """What an edge or a worker needs to tokenize by itself, in pieces. Failures are the
        call's status."""
        found = self._answering.vocabularies.find(request.model, request.vocabulary_digest)
        for piece in transfer.pieces(found):
            yield piece

    async def Tokenize(
        self, request_iterator: AsyncIterator[tokenizer_pb2.TokenizeRequest], context: Context
    ) -> AsyncIterator[tokenizer_pb2.TokenizeResponse]:
        """One text of any size. Its failures are the call's status, as all below."""
        async with aclosing(self._long_texts.blocks(request_iterator)) as blocks:
            async for served, block in blocks:
                self._counts.tokens("tokenize", block.count)
                digest = served.vocabulary.digest
                yield tokenizer_pb2.TokenizeResponse(ids=block, vocabulary_digest=digest)

    async def Count(
        self, request_iterator: AsyncIterator[tokenizer_pb2.CountRequest], context: Context
    ) -> tokenizer_pb2.CountResponse:
        """The number of one text's ids."""
        count, digest = 0, b""
        async with aclosing(self._long_texts.blocks(_as_texts(request_iterator))) as blocks:
            async for served, block in blocks:
                count += block.count
                digest = served.vocabulary.digest
        self._counts.tokens("count", count)
        return tokenizer_pb2.CountResponse(count=count, vocabulary_digest=digest)

    async def Detokenize(
        self, request_iterator: AsyncIterator[tokenizer_pb2.DetokenizeRequest], context: Context
    ) -> AsyncIterator[tokenizer_pb2.DetokenizeResponse]:
        """One sequence of ids of any length."""
        async with aclosing(self._detokenizing.texts(request_iterator)) as texts:
            async for text in texts:
                yield tokenizer_pb2.DetokenizeResponse(text=text)

    async def _encode(self, request: tokenizer_pb2.EncodeRequest) -> tokenizer_pb2.EncodeResponse:
        begun_at = time.perf_counter()
        response = await self._run(
            "encode", self._answering.encode, request, tokenizer_pb2.EncodeResponse
        )
        is_refused = response.error.reason == OverloadedError.reason
        ms = (time.perf_counter() - begun_at) * 1e3
        self._counts.tokenized.record(Layer.REFUSED if is_refused else Layer.THREAD, ms)
        self._counts.tokens("encode", response.ids.count)
        return response

    async def _decode(self, request: tokenizer_pb2.DecodeRequest) -> tokenizer_pb2.DecodeResponse:
        response = await self._run(
            "decode", self._answering.decode, request, tokenizer_pb2.DecodeResponse
        )
        self._counts.tokens("decode", request.ids.count)
        return response

    async def _run(
        self,
        operation: str,
        work: Callable[[RequestT], AnswerT],
        request: RequestT,
        response_type: Callable[..., AnswerT],
    ) -> AnswerT:
        parent = (request.trace.traceparent, request.trace.tracestate)
        labels = {"operation": operation}
        try:
            with span(names.SPAN_TOKENIZE, parent=parent):
                return await self._workers.run(work, request, kind_of(request))
        except OutriderError as error:
            labels[names.ERROR_TYPE] = error.reason
            return response_type(number=request.number, error=to_detail(error))
        except Exception:
            # A defect fails this request alone; the log has the stack, the peer has no use for it.
            labels[names.ERROR_TYPE] = OutriderError.reason
            _log.exception("request_failed", operation=operation)
            failure = OutriderError("The tokenizer failed on this request: see its log.")
            return response_type(number=request.number, error=to_detail(failure))
        finally:
            self._counts.metrics.counter(REQUESTS).add(1, labels)


async def _as_texts(
    requests: AsyncIterator[tokenizer_pb2.CountRequest],
) -> AsyncIterator[tokenizer_pb2.TokenizeRequest]:
    async for request in requests:
        yield tokenizer_pb2.TokenizeRequest(
            model=request.model, text=request.text, vocabulary_digest=request.vocabulary_digest
        )
