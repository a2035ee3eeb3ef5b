"""`python -m services.tokenizer.long_texts.worker HOST:PORT`: a worker process of that tokenizer
service, which gets parts of texts from it and returns their ids."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc.aio
import structlog
import uvloop

from outrider.codec.tokens import TokenCodec
from outrider.errors import ConfigError, OutriderError, VocabularyMismatchError
from outrider.lru_map import LruMap
from outrider.models.chat import check_text
from outrider.rpc import Outbox, from_rpc_error, make_channel
from outrider.telemetry.logs import configure_logging
from outrider.tls import PLAINTEXT, Role, Tls, TlsConfig
from outrider.v1 import common_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from outrider.wire import error_to_proto, token_block_to_proto
from services.tokenizer.vocabularies import ServedVocabulary, received_vocabulary

HEARTBEAT_S: Final = 1.0
"""Between two heartbeats."""
SLOTS: Final = 2
"""One part in progress, and one that is ready when it is done."""
_RETRY_S: Final = 1.0
"""Before it reconnects."""
_MAX_MESSAGE_BYTES: Final = 64 << 20
_MAX_VOCABULARIES: Final = 4

_log = structlog.get_logger()


async def run_forever(address: str, name: str, tls: Tls = PLAINTEXT) -> None:
    """Work for a service until SIGTERM; reconnects whenever it is lost."""
    stopping = _told_to_stop()
    async with tls.watched():
        while not stopping.is_set():
            await _work(address, name, tls, stopping)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S):
                    await stopping.wait()


async def run_once(address: str, name: str, tls: Tls = PLAINTEXT) -> None:
    """Work for a service until it is lost or SIGTERM comes."""
    await _work(address, name, tls, _told_to_stop())


def _told_to_stop() -> asyncio.Event:
    """Set by SIGTERM, also while the worker has no service."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    return stopping


async def _work(address: str, name: str, tls: Tls, stopping: asyncio.Event) -> None:
    """Work for a service until it is lost, or until `stopping` is set and begun parts are done."""
    outbox: Outbox[tokenizer_pb2.WorkRequest] = Outbox(2 * SLOTS)
    hello = tokenizer_pb2.WorkerHello(name=name, slots=SLOTS)
    outbox.put_nowait(tokenizer_pb2.WorkRequest(hello=hello))
    with ThreadPoolExecutor(1, "tokenize") as pool:
        async with make_channel(
            address, tls=tls, role=Role.TOKENIZER, max_message_bytes=_MAX_MESSAGE_BYTES
        ) as channel:
            heartbeats = asyncio.create_task(_send_heartbeats(outbox))
            closing = asyncio.create_task(_close_when(stopping, outbox))
            try:
                await _serve(channel, outbox, pool)
            except grpc.aio.AioRpcError as error:
                _log.info("service_lost", address=address, code=error.code().name)
            finally:
                heartbeats.cancel()
                closing.cancel()


async def _close_when(stopping: asyncio.Event, outbox: Outbox[tokenizer_pb2.WorkRequest]) -> None:
    await stopping.wait()
    outbox.close()


async def _serve(
    channel: grpc.aio.Channel,
    outbox: Outbox[tokenizer_pb2.WorkRequest],
    pool: ThreadPoolExecutor,
) -> None:
    stub: tokenizer_pb2_grpc.TokenizerWorkServiceAsyncStub
    stub = tokenizer_pb2_grpc.TokenizerWorkServiceStub(channel)
    vocabularies = _VocabularyCache(channel)
    async for part in stub.Work(outbox):
        result = await _result(part, vocabularies, pool)
        with contextlib.suppress(OutriderError):  # stopped meanwhile
            await outbox.put(tokenizer_pb2.WorkRequest(result=result))


async def _send_heartbeats(outbox: Outbox[tokenizer_pb2.WorkRequest]) -> None:
    heartbeat = tokenizer_pb2.WorkRequest(heartbeat=tokenizer_pb2.WorkerHeartbeat())
    while not outbox.closed:
        await asyncio.sleep(HEARTBEAT_S)
        with contextlib.suppress(
            OutriderError
        ):  # closed, or full of other messages, which count as heartbeats
            outbox.put_nowait(heartbeat)


async def _result(
    part: tokenizer_pb2.WorkResponse, vocabularies: _VocabularyCache, pool: ThreadPoolExecutor
) -> tokenizer_pb2.PartResult:
    result = tokenizer_pb2.PartResult(job=part.job, sequence=part.sequence)
    loop = asyncio.get_running_loop()
    try:
        served = await vocabularies.find(part, pool)
        block = await loop.run_in_executor(pool, _encode, served, part)
        result.ids.CopyFrom(block)
    except OutriderError as error:
        result.error.CopyFrom(error_to_proto(error))
    except grpc.aio.AioRpcError:
        raise
    except Exception:
        # A defect fails this text alone; the log has the stack, the peer has no use for it.
        _log.exception("part_failed", job=part.job, sequence=part.sequence)
        failure = OutriderError("a tokenizer worker failed on this text; see its log")
        result.error.CopyFrom(error_to_proto(failure))
    return result


def _encode(served: ServedVocabulary, part: tokenizer_pb2.WorkResponse) -> common_pb2.TokenBlock:
    text = part.text
    check_text(text)
    ids = served.encoder.backend.encode(text)
    return token_block_to_proto(served.coder.encode(ids, TokenCodec(part.codec)))


class _VocabularyCache:
    """Vocabularies, fetched from the service when first needed."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub
        self._stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        self._by_digest: LruMap[bytes, ServedVocabulary] = LruMap(_MAX_VOCABULARIES)

    async def find(
        self, part: tokenizer_pb2.WorkResponse, pool: ThreadPoolExecutor
    ) -> ServedVocabulary:
        """The vocabulary of a part. Raises VocabularyMismatchError if the service no longer has
        it, and what gRPC raises."""
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
            found = await loop.run_in_executor(pool, received_vocabulary, answers)
            self._by_digest.put(found.vocabulary.digest, found)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m services.tokenizer.long_texts.worker", description=__doc__
    )
    parser.add_argument("address", help="HOST:WORKER_PORT of the tokenizer service")
    parser.add_argument("--name", default=f"{socket.gethostname()}-{os.getpid()}")
    parser.add_argument("--once", action="store_true", help="end when the service is lost")
    parser.add_argument("--certificate", type=Path, help="PEM, of the role tokenizer-worker")
    parser.add_argument("--private-key", type=Path, help="PEM key of the certificate")
    parser.add_argument("--ca", type=Path, help="PEM that the service's certificate leads to")
    parser.add_argument("--trust-domain", default=TlsConfig().trust_domain)
    parser.add_argument(
        "--allow-plaintext", action="store_true", help="for other machines without certificates"
    )
    arguments = parser.parse_args()
    # A service logs joins and losses of its own workers (--once) itself.
    configure_logging("tokenizer-worker", "warning" if arguments.once else "info")
    try:
        tls = Tls.open(_tls_config(arguments), Role.TOKENIZER_WORKER)
        run = run_once if arguments.once else run_forever
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(arguments.address, arguments.name, tls))
    except ConfigError as error:
        parser.error(str(error))
    return 0


def _tls_config(arguments: argparse.Namespace) -> TlsConfig:
    return TlsConfig(
        certificate=arguments.certificate,
        private_key=arguments.private_key,
        ca=arguments.ca,
        trust_domain=arguments.trust_domain,
        allow_plaintext=arguments.allow_plaintext,
    )


if __name__ == "__main__":
    sys.exit(main())
