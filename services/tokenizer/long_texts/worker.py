"""A worker: gets parts of texts from tokenizer services and returns their ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import grpc.aio
import structlog

from outrider.codec.tokens import TokenCodec
from outrider.errors import OutriderError, UnknownModelError, VocabularyMismatchError
from outrider.lru_map import LruMap
from outrider.models.chat import check_text
from outrider.rpc import Outbox, from_rpc_error, make_channel, until_distrusted
from outrider.shared_calls import SharedCalls
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.tokenization.backends.base import REFERENCE
from outrider.tokenization.backends.packages import installed_version
from outrider.v1 import common_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from outrider.wire import error_to_proto, token_block_to_proto
from services.tokenizer.vocabularies import ServedVocabulary, received_vocabulary

LET_IN: Final = ("outrider-worker", "let-in")
"""Initial metadata with which a service says that it has let a worker in."""
HEARTBEAT_S: Final = 1.0
"""Between two heartbeats."""
_MAX_MESSAGE_BYTES: Final = 64 << 20
_MAX_VOCABULARIES: Final = 4
"""Of all services together; the one that was used least recently goes."""

_log = structlog.get_logger()


class PartWorker:
    """Tokenizes parts for any number of services, in `threads` threads. Each service gives it one
    part for each thread, and one that is ready when another is done."""

    def __init__(
        self,
        name: str,
        threads: int = 1,
        *,
        tls: Tls = PLAINTEXT,
        on_part: Callable[[common_pb2.TokenBlock], None] = lambda ids: None,
    ) -> None:
        """`name` is unique among the workers of a service. `on_part` is told of every part done.
        `close` has to be called."""
        self._name = name
        self._num_slots = threads + 1
        self._tls = tls
        self._on_part = on_part
        self._threads = ThreadPoolExecutor(threads, "tokenize")
        self._vocabularies = _Vocabularies(self._threads)

    def close(self) -> None:
        """End the threads after what they do now."""
        self._threads.shutdown(cancel_futures=True)

    async def work(
        self,
        address: str,
        stopping: asyncio.Event,
        *,
        joined: Callable[[], object] = lambda: None,
        drain_s: float = 5.0,
    ) -> None:
        """Work for the service at `address` until it is lost; once `stopping` is set, until it has
        the results of what it gave, for `drain_s` at most. `joined` is called when it has let this
        worker in. Raises UnavailableError, VocabularyMismatchError where this worker is refused,
        and what else the service says."""
        async with make_channel(
            address, tls=self._tls, role=Role.TOKENIZER, max_message_bytes=_MAX_MESSAGE_BYTES
        ) as channel:
            outbox: Outbox[tokenizer_pb2.WorkRequest] = Outbox(2 * self._num_slots)
            outbox.put_nowait(tokenizer_pb2.WorkRequest(hello=self._hello()))
            beside = [
                asyncio.create_task(_send_heartbeats(outbox)),
                asyncio.create_task(_leave_when(stopping, outbox, drain_s)),
            ]
            try:
                await self._answer_all(address, channel, outbox, joined)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error) from error
            finally:
                for task in beside:
                    task.cancel()

    def _hello(self) -> tokenizer_pb2.WorkerHello:
        return tokenizer_pb2.WorkerHello(
            name=self._name,
            slots=self._num_slots,
            reference_version=installed_version(REFERENCE) or "",
        )

    async def _answer_all(
        self,
        address: str,
        channel: grpc.aio.Channel,
        outbox: Outbox[tokenizer_pb2.WorkRequest],
        joined: Callable[[], object],
    ) -> None:
        stub: tokenizer_pb2_grpc.TokenizerWorkServiceAsyncStub
        stub = tokenizer_pb2_grpc.TokenizerWorkServiceStub(channel)
        slots = asyncio.Semaphore(self._num_slots)
        call = stub.Work(outbox)
        if LET_IN in tuple(await call.initial_metadata()):
            joined()
        async with _first_failure(), asyncio.TaskGroup() as group:
            watching = group.create_task(
                until_distrusted(address, tls=self._tls, role=Role.TOKENIZER)
            )
            async for part in call:
                await slots.acquire()  # whoever sends more than that is not read
                answering = group.create_task(self._answer(channel, part, outbox))
                answering.add_done_callback(lambda _: slots.release())
            watching.cancel()

    async def _answer(
        self,
        channel: grpc.aio.Channel,
        part: tokenizer_pb2.WorkResponse,
        outbox: Outbox[tokenizer_pb2.WorkRequest],
    ) -> None:
        result = tokenizer_pb2.PartResult(job=part.job, sequence=part.sequence)
        loop = asyncio.get_running_loop()
        try:
            served = await self._vocabularies.find(channel, part)
            block = await loop.run_in_executor(self._threads, _encode, served, part)
            result.ids.CopyFrom(block)
            result.vocabulary_digest = served.vocabulary.digest
            self._on_part(block)
        except OutriderError as error:
            result.error.CopyFrom(error_to_proto(error))
        except grpc.aio.AioRpcError:
            raise
        except Exception:
            # A defect fails this text alone; the log has the stack, the peer has no use for it.
            _log.exception("part_failed", job=part.job, sequence=part.sequence)
            failure = OutriderError("a tokenizer worker failed on this text; see its log")
            result.error.CopyFrom(error_to_proto(failure))
        with suppress(OutriderError):  # its time to drain is over
            await outbox.put(tokenizer_pb2.WorkRequest(result=result))


@asynccontextmanager
async def _first_failure() -> AsyncIterator[None]:
    """Raises the first one of a group's failures alone."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group


async def _send_heartbeats(outbox: Outbox[tokenizer_pb2.WorkRequest]) -> None:
    heartbeat = tokenizer_pb2.WorkRequest(heartbeat=tokenizer_pb2.WorkerHeartbeat())
    while not outbox.closed:
        await asyncio.sleep(HEARTBEAT_S)
        outbox.offer(heartbeat)  # full of other messages, which count as heartbeats


async def _leave_when(
    stopping: asyncio.Event, outbox: Outbox[tokenizer_pb2.WorkRequest], drain_s: float
) -> None:
    await stopping.wait()
    with suppress(TimeoutError, OutriderError):
        async with asyncio.timeout(drain_s):
            leaving = tokenizer_pb2.WorkerLeaving()
            await outbox.put(tokenizer_pb2.WorkRequest(leaving=leaving))
            await asyncio.Event().wait()  # the service ends the stream
    outbox.close()


def _encode(served: ServedVocabulary, part: tokenizer_pb2.WorkResponse) -> common_pb2.TokenBlock:
    text = part.text
    check_text(text)
    ids = served.encoder.backend.encode(text)
    return token_block_to_proto(served.coder.encode(ids, TokenCodec(part.codec)))


class _Vocabularies:
    """By digest, fetched from the service whose part needs it. Parts of one service share a fetch;
    a service that is slow, or is lost, holds up no part of another."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._by_digest: LruMap[bytes, ServedVocabulary] = LruMap(_MAX_VOCABULARIES)
        self._fetches: SharedCalls[tuple[grpc.aio.Channel, bytes], ServedVocabulary] = SharedCalls()

    async def find(
        self, channel: grpc.aio.Channel, part: tokenizer_pb2.WorkResponse
    ) -> ServedVocabulary:
        """The vocabulary of a part. Raises VocabularyMismatchError or UnknownModelError if the
        service no longer has it, or sends another one, and what gRPC raises."""
        digest = part.vocabulary_digest
        found = self._by_digest.get(digest)
        if found is None:
            fetched = partial(self._fetched, channel, part)
            found = await self._fetches.result((channel, digest), fetched)
            self._by_digest.put(digest, found)
        return found

    async def _fetched(
        self, channel: grpc.aio.Channel, part: tokenizer_pb2.WorkResponse
    ) -> ServedVocabulary:
        stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        request = tokenizer_pb2.GetVocabularyRequest(
            model=part.model, vocabulary_digest=part.vocabulary_digest
        )
        try:
            answers = [answer async for answer in stub.GetVocabulary(request)]
        except grpc.aio.AioRpcError as error:
            reason = from_rpc_error(error)
            if isinstance(reason, VocabularyMismatchError | UnknownModelError):
                raise reason from error
            raise
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, received_vocabulary, answers)
        if found.vocabulary.digest != part.vocabulary_digest:
            raise VocabularyMismatchError(
                f"vocabulary {part.vocabulary_digest.hex()} of model {part.model} was asked for, "
                f"and {found.vocabulary.digest.hex()} was sent"
            )
        return found
