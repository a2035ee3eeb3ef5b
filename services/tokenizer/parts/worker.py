"""A worker process: gets parts of texts from a tokenizer service and gives ids back."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc.aio
import structlog

from outrider.codec.tokens import TokenCodec
from outrider.errors import OutriderError, VocabularyMismatchError
from outrider.models.chat import check_text
from outrider.rpc import Outbox, from_rpc_error, make_channel
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.v1 import common_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from outrider.wire import tokens as wire_tokens
from outrider.wire.errors import to_detail
from services.tokenizer.vocabularies import Served
from services.tokenizer.vocabularies.transfer import received

ALIVE_S: Final = 1.0
"""Between two signs of life."""
PLACES: Final = 2
"""One part at work, and one that is there when it is done."""
_RETRY_S: Final = 1.0
_MAX_MESSAGE_BYTES: Final = 64 << 20
_MAX_VOCABULARIES: Final = 4

_log = structlog.get_logger()


async def stay(address: str, name: str, tls: Tls = PLAINTEXT) -> None:
    """Work for a service, again after each loss, until SIGTERM."""
    is_told_to_end = False
    async with tls.watched():
        while not is_told_to_end:
            is_told_to_end = await work(address, name, tls)
            await asyncio.sleep(0.0 if is_told_to_end else _RETRY_S)


async def work(address: str, name: str, tls: Tls = PLAINTEXT) -> bool:
    """Work for a service until it is lost (False) or SIGTERM says to end (True)."""
    outbox: Outbox[tokenizer_pb2.WorkRequest] = Outbox(2 * PLACES)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, outbox.close)
    with ThreadPoolExecutor(1, "tokenize") as pool:
        async with make_channel(
            address, tls=tls, role=Role.TOKENIZER, max_message_bytes=_MAX_MESSAGE_BYTES
        ) as channel:
            alive = asyncio.create_task(_stay_alive(outbox))
            try:
                await _serve(channel, name, outbox, pool)
            except grpc.aio.AioRpcError as error:
                _log.info("service_lost", address=address, code=error.code().name)
            finally:
                alive.cancel()
    return outbox.closed


async def _serve(
    channel: grpc.aio.Channel,
    name: str,
    outbox: Outbox[tokenizer_pb2.WorkRequest],
    pool: ThreadPoolExecutor,
) -> None:
    hello = tokenizer_pb2.WorkerHello(name=name, places=PLACES)
    outbox.put_nowait(tokenizer_pb2.WorkRequest(hello=hello))
    stub: tokenizer_pb2_grpc.TokenizerWorkServiceAsyncStub
    stub = tokenizer_pb2_grpc.TokenizerWorkServiceStub(channel)
    shelf = _Shelf(channel)
    async for part in stub.Work(outbox):
        result = await _result(part, shelf, pool)
        with contextlib.suppress(OutriderError):  # told to end meanwhile
            await outbox.put(tokenizer_pb2.WorkRequest(result=result))


async def _stay_alive(outbox: Outbox[tokenizer_pb2.WorkRequest]) -> None:
    alive = tokenizer_pb2.WorkRequest(alive=tokenizer_pb2.WorkerAlive())
    while not outbox.closed:
        await asyncio.sleep(ALIVE_S)
        with contextlib.suppress(OutriderError):  # closed, or full of other signs of life
            outbox.put_nowait(alive)


async def _result(
    part: tokenizer_pb2.WorkResponse, shelf: _Shelf, pool: ThreadPoolExecutor
) -> tokenizer_pb2.PartResult:
    result = tokenizer_pb2.PartResult(job=part.job, sequence=part.sequence)
    loop = asyncio.get_running_loop()
    try:
        served = await shelf.served(part, pool)
        block = await loop.run_in_executor(pool, _encode, served, part)
        result.ids.CopyFrom(block)
    except OutriderError as error:
        result.error.CopyFrom(to_detail(error))
    except grpc.aio.AioRpcError:
        raise
    except Exception:
        # A defect fails this text alone; the log has the stack, the peer has no use for it.
        _log.exception("part_failed", job=part.job, sequence=part.sequence)
        failure = OutriderError("A tokenizer worker failed on this text: see its log.")
        result.error.CopyFrom(to_detail(failure))
    return result


def _encode(served: Served, part: tokenizer_pb2.WorkResponse) -> common_pb2.TokenBlock:
    text = part.text
    check_text(text)
    ids = served.encoder.backend.encode(text)
    return wire_tokens.to_proto(served.coder.encode(ids, TokenCodec(part.codec)))


class _Shelf:
    """Vocabularies, fetched from the service when first needed."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub
        self._stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        self._by_digest: dict[bytes, Served] = {}

    async def served(self, part: tokenizer_pb2.WorkResponse, pool: ThreadPoolExecutor) -> Served:
        """The vocabulary of a part. Raises VocabularyMismatchError for one that the service has no
        more, and what gRPC raises."""
        found = self._by_digest.get(part.vocabulary_digest)
        if found is None:
            request = tokenizer_pb2.GetVocabularyRequest(
                model=part.model, vocabulary_digest=part.vocabulary_digest
            )
            try:
                answers = [answer async for answer in self._stub.GetVocabulary(request)]
            except grpc.aio.AioRpcError as error:
                reason = from_rpc_error(error)
                if isinstance(reason, VocabularyMismatchError):
                    raise reason from error
                raise
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(pool, received, answers)
            while len(self._by_digest) >= _MAX_VOCABULARIES:
                del self._by_digest[next(iter(self._by_digest))]
            self._by_digest[found.vocabulary.digest] = found
        return found
