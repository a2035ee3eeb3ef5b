"""A worker among services that are slow, refuse it, or no longer have what a part needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from outrider.codec.tokens import TokenCodec
from outrider.errors import UnknownModelError, VocabularyMismatchError
from outrider.rpc import make_server
from outrider.telemetry.metrics import Metrics
from outrider.testing import eventually
from outrider.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from services.tokenizer.app import SERVICE
from services.tokenizer.long_texts.jobs import DispatcherLimits
from services.tokenizer.long_texts.listener import TokenizerWorkService
from services.tokenizer.long_texts.worker import PartWorker
from services.tokenizer.long_texts.worker_pool import OpenJob, PartPayload, WorkerPool
from services.tokenizer.vocabularies import ServedVocabulary, vocabulary_pieces
from tests.edge.integration.region import small_vocabulary

MODEL, TEXT = "model", "some words"
SERVED = ServedVocabulary.of(MODEL, small_vocabulary())
Send = Callable[[], AsyncIterator[tokenizer_pb2.GetVocabularyResponse]]


def vocabularies(send: Send) -> grpc.GenericRpcHandler:
    """Sends a vocabulary as a test says."""

    async def get_vocabulary(
        request: tokenizer_pb2.GetVocabularyRequest, context: Any
    ) -> AsyncIterator[tokenizer_pb2.GetVocabularyResponse]:
        async for piece in send():
            yield piece

    method = grpc.unary_stream_rpc_method_handler(
        get_vocabulary,
        request_deserializer=tokenizer_pb2.GetVocabularyRequest.FromString,
        response_serializer=tokenizer_pb2.GetVocabularyResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICE, {"GetVocabulary": method})


@dataclass
class Service:
    """Gives parts to workers."""

    pool: WorkerPool
    address: str

    def begin(self, digest: bytes = SERVED.vocabulary.digest) -> OpenJob:
        """A text of one part."""
        job = self.pool.open()
        self.pool.add(job, PartPayload(MODEL, digest, int(TokenCodec.VARINT), TEXT))
        return job


@asynccontextmanager
async def listening(
    servicer: tokenizer_pb2_grpc.TokenizerWorkServiceServicer, send: Send
) -> AsyncIterator[str]:
    server = make_server()
    tokenizer_pb2_grpc.add_TokenizerWorkServiceServicer_to_server(servicer, server)
    server.add_generic_rpc_handlers((vocabularies(send),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def service_of(send: Send) -> AsyncIterator[Service]:
    metrics = Metrics("tokenizer")
    pool = WorkerPool(DispatcherLimits(), metrics, lambda name: None)
    async with listening(TokenizerWorkService(pool, is_local=True), send) as address:
        yield Service(pool, address)
    metrics.close()


@asynccontextmanager
async def working(*services: Service) -> AsyncIterator[None]:
    """One worker, for all of these."""
    worker, stopping = PartWorker("w"), asyncio.Event()
    tasks = [asyncio.create_task(worker.work(it.address, stopping)) for it in services]
    await eventually(lambda: all(it.pool.num_workers == 1 for it in services))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        worker.close()


async def sent() -> AsyncIterator[tokenizer_pb2.GetVocabularyResponse]:
    for piece in vocabulary_pieces(SERVED):
        yield piece


def num_ids(job: OpenJob) -> int:
    return sum(block.count for block in job.state.take())


async def test_a_service_whose_vocabulary_does_not_come_holds_up_no_part_of_another() -> None:
    """Nor if both have the same vocabulary."""
    asked = asyncio.Event()

    async def hang() -> AsyncIterator[tokenizer_pb2.GetVocabularyResponse]:
        asked.set()
        await asyncio.Event().wait()
        yield tokenizer_pb2.GetVocabularyResponse()

    async with service_of(hang) as slow, service_of(sent) as well, working(slow, well):
        slow.begin()
        await asked.wait()
        job = well.begin()
        await eventually(lambda: not job.state.parts)
        assert num_ids(job) == len(SERVED.vocabulary.encode(TEXT))


@pytest.mark.parametrize("refusal", [UnknownModelError, VocabularyMismatchError])
async def test_a_part_of_a_model_that_is_served_no_more_fails_and_the_worker_stays(
    refusal: type[UnknownModelError | VocabularyMismatchError],
) -> None:
    async def send() -> AsyncIterator[tokenizer_pb2.GetVocabularyResponse]:
        if first.state.error is None:
            raise refusal("it is gone")
        async for piece in sent():
            yield piece

    async with service_of(send) as service, working(service):
        (worker,) = service.pool._outboxes.values()
        first = service.begin()
        await eventually(lambda: first.state.error is not None)
        assert isinstance(first.state.error, refusal)
        second = service.begin()
        await eventually(lambda: not second.state.parts)
        assert num_ids(second) == len(SERVED.vocabulary.encode(TEXT))
        assert list(service.pool._outboxes.values()) == [worker], "on the same stream"


class Refusing(tokenizer_pb2_grpc.TokenizerWorkServiceServicer):
    """Refuses a worker late: the metadata that gRPC sends by itself come before."""

    async def Work(
        self, request_iterator: AsyncIterator[tokenizer_pb2.WorkRequest], context: Any
    ) -> AsyncIterator[tokenizer_pb2.WorkResponse]:
        await context.send_initial_metadata(())
        async for message in request_iterator:
            if message.HasField("heartbeat"):
                raise VocabularyMismatchError("install the same")
        yield tokenizer_pb2.WorkResponse()


async def test_a_worker_is_let_in_when_the_service_says_so_and_not_before() -> None:
    joined: list[str] = []
    worker = PartWorker("w")
    async with listening(Refusing(), sent) as address, service_of(sent) as service:
        with pytest.raises(VocabularyMismatchError, match="install the same"):
            await worker.work(address, asyncio.Event(), joined=lambda: joined.append("refused"))
        assert joined == []
        stopping = asyncio.Event()
        task = asyncio.create_task(
            worker.work(service.address, stopping, joined=lambda: joined.append("let in"))
        )
        await eventually(lambda: joined == ["let in"])
        stopping.set()
        await task
    worker.close()
