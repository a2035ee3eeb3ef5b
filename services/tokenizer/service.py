"""TokenizerService over grpc.aio, and its bidirectional streams of numbered requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import grpc.aio
import structlog

from outrider.errors import OutriderError, OverloadedError
from outrider.fair_work.calls import FairThreads
from outrider.rpc import Outbox, incoming
from outrider.telemetry import names
from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics
from outrider.telemetry.tracing import span
from outrider.tokenization.pool.metrics import TokenizationMetrics
from outrider.tokenization.pool.pool import Tier
from outrider.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from outrider.wire import error_to_proto, requester_from_proto
from services.tokenizer.long_texts.texts import LongDetokenizer, LongTexts
from services.tokenizer.requests import RequestHandler, Slices, job_class_of
from services.tokenizer.served_models import ServedModels
from services.tokenizer.vocabularies import ServedVocabulary
from services.tokenizer.vocabulary_sending import send_vocabulary

REQUESTS: Final = Family("outrider_tokenizer_requests", "Requests answered.")
TOKENS: Final = Family(
    "outrider_tokenizer_tokens",
    "Token ids made or read, by operation.",
)

Context = grpc.aio.ServicerContext[Any, Any]
RequestT = TypeVar("RequestT", tokenizer_pb2.EncodeRequest, tokenizer_pb2.DecodeRequest)
AnswerT = TypeVar("AnswerT", tokenizer_pb2.EncodeResponse, tokenizer_pb2.DecodeResponse)
InT = TypeVar("InT")
OutT = TypeVar("OutT")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Counts requests and tokens."""

    metrics: Metrics
    tokenization: TokenizationMetrics

    def __post_init__(self) -> None:
        self.metrics.from_zero(TOKENS, "operation", ("encode", "decode", "count", "tokenize"))

    def tokens(self, operation: str, count: int) -> None:
        """`count` ids were made or read."""
        self.metrics.counter(TOKENS).add(count, {"operation": operation})


class TokenizerService(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Answers every request by itself: a bad one fails, and its stream continues."""

    def __init__(
        self,
        models: ServedModels,
        handler: RequestHandler,
        threads: FairThreads,
        long_texts: LongTexts,
        detokenizer: LongDetokenizer,
        metrics: RequestMetrics,
        *,
        max_in_flight: int,
        vocabulary_timeout_s: float,
    ) -> None:
        self._models = models
        self._handler = handler
        self._threads = threads
        self._long_texts = long_texts
        self._detokenizer = detokenizer
        self._metrics = metrics
        self._max_in_flight = max_in_flight
        self._vocabulary_timeout_s = vocabulary_timeout_s

    async def Encode(
        self, request_iterator: AsyncIterator[tokenizer_pb2.EncodeRequest], context: Context
    ) -> AsyncIterator[tokenizer_pb2.EncodeResponse]:
        """Texts to ids."""
        encode = partial(self._encode, _host(context))
        stream = AnswerStream(
            request_iterator, encode, max_in_flight=self._max_in_flight, withdrawn=_withdrawn
        )
        async with aclosing(stream.answers()) as answers:
            async for answer in answers:
                yield answer

    async def Decode(
        self, request_iterator: AsyncIterator[tokenizer_pb2.DecodeRequest], context: Context
    ) -> AsyncIterator[tokenizer_pb2.DecodeResponse]:
        """Ids to texts."""
        decode = partial(self._decode, _host(context))
        stream = AnswerStream(request_iterator, decode, max_in_flight=self._max_in_flight)
        async with aclosing(stream.answers()) as answers:
            async for answer in answers:
                yield answer

    async def GetVocabulary(
        self, request: tokenizer_pb2.GetVocabularyRequest, context: Context
    ) -> AsyncIterator[tokenizer_pb2.GetVocabularyResponse]:
        """The vocabulary for an edge or worker that tokenizes by itself, in pieces. Failures are
        the call's status."""
        pieces = send_vocabulary(self._models, request, self._vocabulary_timeout_s)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def Tokenize(
        self, request_iterator: AsyncIterator[tokenizer_pb2.TokenizeRequest], context: Context
    ) -> AsyncIterator[tokenizer_pb2.TokenizeResponse]:
        """One text of any size. Failures are the call's status, here and in the methods below."""
        peer = _host(context)
        async with aclosing(self._long_texts.blocks(request_iterator, peer)) as blocks:
            async for served, block in blocks:
                self._metrics.tokens("tokenize", block.count)
                digest = served.vocabulary.digest
                yield tokenizer_pb2.TokenizeResponse(ids=block, vocabulary_digest=digest)

    async def Count(
        self, request_iterator: AsyncIterator[tokenizer_pb2.CountRequest], context: Context
    ) -> tokenizer_pb2.CountResponse:
        """The number of one text's ids."""
        count, digest = 0, b""
        texts, peer = _as_texts(request_iterator), _host(context)
        async with aclosing(self._long_texts.blocks(texts, peer)) as blocks:
            async for served, block in blocks:
                count += block.count
                digest = served.vocabulary.digest
        self._metrics.tokens("count", count)
        return tokenizer_pb2.CountResponse(count=count, vocabulary_digest=digest)

    async def Detokenize(
        self, request_iterator: AsyncIterator[tokenizer_pb2.DetokenizeRequest], context: Context
    ) -> AsyncIterator[tokenizer_pb2.DetokenizeResponse]:
        """One sequence of ids of any length."""
        async with aclosing(self._detokenizer.texts(request_iterator, _host(context))) as texts:
            async for text in texts:
                yield tokenizer_pb2.DetokenizeResponse(text=text)

    async def _encode(
        self, peer: str, request: tokenizer_pb2.EncodeRequest
    ) -> tokenizer_pb2.EncodeResponse:
        begun_at = time.perf_counter()
        response = await self._run(
            "encode", peer, self._handler.encode, request, tokenizer_pb2.EncodeResponse
        )
        is_refused = response.error.reason == OverloadedError.reason
        ms = (time.perf_counter() - begun_at) * 1e3
        self._metrics.tokenization.record(Tier.REFUSED if is_refused else Tier.THREAD, ms)
        self._metrics.tokens("encode", response.ids.count)
        return response

    async def _decode(
        self, peer: str, request: tokenizer_pb2.DecodeRequest
    ) -> tokenizer_pb2.DecodeResponse:
        response = await self._run(
            "decode", peer, self._handler.decode, request, tokenizer_pb2.DecodeResponse
        )
        self._metrics.tokens("decode", request.ids.count)
        return response

    async def _run(
        self,
        operation: str,
        peer: str,
        work: Callable[[ServedVocabulary, RequestT], Slices[AnswerT]],
        request: RequestT,
        response_type: Callable[..., AnswerT],
    ) -> AnswerT:
        parent = (request.trace.traceparent, request.trace.tracestate)
        labels = {"operation": operation, "model": ""}
        try:
            with span(names.SPAN_TOKENIZE, parent=parent):
                async with self._models.using(request.model, request.vocabulary_digest) as served:
                    # Not the client's own word: it must not become a label.
                    labels["model"] = served.model
                    return await self._threads.run_slices(
                        work(served, request),
                        requester_from_proto(request.requester, peer),
                        num_bytes=request.ByteSize(),
                        job_class=job_class_of(request),
                    )
        except OutriderError as error:
            labels[names.ERROR_TYPE] = error.reason
            return response_type(number=request.number, error=error_to_proto(error))
        except Exception:
            # A defect fails this request alone. The stack goes to the log, not to the peer.
            labels[names.ERROR_TYPE] = OutriderError.reason
            _log.exception("request_failed", operation=operation)
            failure = OutriderError("the tokenizer failed on this request; see its log")
            return response_type(number=request.number, error=error_to_proto(failure))
        finally:
            self._metrics.metrics.counter(REQUESTS).add(1, labels)


def _host(context: Context) -> str:
    """The caller's address without its port: `ipv4:192.0.2.1`."""
    return context.peer().rpartition(":")[0]


async def _as_texts(
    requests: AsyncIterator[tokenizer_pb2.CountRequest],
) -> AsyncIterator[tokenizer_pb2.TokenizeRequest]:
    async for request in requests:
        yield tokenizer_pb2.TokenizeRequest(
            model=request.model,
            text=request.text,
            vocabulary_digest=request.vocabulary_digest,
            requester=request.requester,
        )


def _withdrawn(request: tokenizer_pb2.EncodeRequest) -> int | None:
    return request.number if request.withdrawn else None


class AnswerStream(Generic[InT, OutT]):
    """Reads requests and yields answers in the order of completion.

    At most `max_in_flight` requests are read ahead of answers taken: from a caller that does not
    read its answers nothing more is read, and gRPC's flow control holds it back.
    """

    def __init__(
        self,
        requests: AsyncIterator[InT],
        answer: Callable[[InT], Awaitable[OutT]],
        *,
        max_in_flight: int,
        number: Callable[[InT], int] = attrgetter("number"),
        withdrawn: Callable[[InT], int | None] = lambda request: None,
    ) -> None:
        """`answer` reports a request's failure in its answer and does not raise. `number`: of a
        request. `withdrawn`: the number of the request that a message gives up; None: it asks."""
        self._requests = requests
        self._answer = answer
        self._number = number
        self._withdrawn = withdrawn
        self._slots = asyncio.Semaphore(max_in_flight)
        self._outbox: Outbox[OutT] = Outbox(max_in_flight)
        self._tasks: dict[asyncio.Task[None], int] = {}
        """Requests under way, by their numbers."""
        self._is_read = False

    async def answers(self) -> AsyncGenerator[OutT, None]:
        """Answers until the requests end; closing it early cancels running requests."""
        reader = asyncio.create_task(self._read())
        try:
            async for answer in self._outbox:
                yield answer
                self._slots.release()
            reader.result()
        finally:
            reader.cancel()
            for task in self._tasks:
                task.cancel()

    async def _read(self) -> None:
        try:
            async for request in incoming(self._requests):
                if (number := self._withdrawn(request)) is not None:
                    self._give_up(number)
                    continue
                await self._slots.acquire()
                task = asyncio.create_task(self._answer_one(request))
                self._tasks[task] = self._number(request)
                task.add_done_callback(self._finish)
        finally:
            self._is_read = True
            self._close_if_done()

    def _give_up(self, number: int) -> None:
        for task, its_number in self._tasks.items():
            if its_number == number:
                task.cancel()

    async def _answer_one(self, request: InT) -> None:
        self._outbox.put_nowait(await self._answer(request))

    def _finish(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if task.cancelled():
            self._slots.release()  # by its answer otherwise
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_read and not self._tasks:
            self._outbox.close()
