"""The gRPC listeners at which workers join: a socket for those of this node, a port for others."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from outrider.rpc import bind, make_server
from outrider.tls import PLAINTEXT, Tls
from outrider.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from services.tokenizer.config import TokenizerConfig
from services.tokenizer.long_texts.texts import LongTexts
from services.tokenizer.long_texts.worker import LET_IN
from services.tokenizer.long_texts.worker_pool import OF_THIS_NODE, WorkerPool
from services.tokenizer.served_models import ServedModels
from services.tokenizer.vocabulary_sending import send_vocabulary

_MAX_CALLS: Final = 512
"""Open calls of one listener: a worker has one, and at times another for a vocabulary."""
_LAST_ANSWERS_S: Final = 0.2
_SERVICE: Final = tokenizer_pb2.DESCRIPTOR.services_by_name["TokenizerService"].full_name

_log = structlog.get_logger()


class TokenizerWorkService(tokenizer_pb2_grpc.TokenizerWorkServiceServicer):
    """Gives workers the parts of long texts."""

    def __init__(self, workers: WorkerPool, *, is_local: bool) -> None:
        """`is_local`: whether only processes of this node can call it."""
        self._workers = workers
        self._is_local = is_local

    async def Work(
        self,
        request_iterator: AsyncIterator[tokenizer_pb2.WorkRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[tokenizer_pb2.WorkResponse]:
        """One worker's parts, from its hello until it leaves. The metadata that are sent first say
        that it was let in."""
        owner = OF_THIS_NODE if self._is_local else _owner(context)

        async def let_in() -> None:
            await context.send_initial_metadata((LET_IN,))

        async with aclosing(self._workers.work(request_iterator, owner, let_in)) as parts:
            async for part in parts:
                yield part


@asynccontextmanager
async def worker_listeners(
    config: TokenizerConfig, texts: LongTexts, models: ServedModels, tls: Tls
) -> AsyncIterator[None]:
    """Workers may join while the context is open. Raises ConfigError."""
    async with AsyncExitStack() as stack:
        if config.worker_processes:
            # Only this user can open the folder (mkdtemp(3)): who connects to the socket is trusted
            # as much as this process.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="outrider-"))
            address = f"unix:{Path(folder) / 'workers'}"
            server = _server(config, texts, models, PLAINTEXT, is_local=True)
            bind(server, address, 0)
            await _serve(stack, server)
            texts.processes.address = address
        if config.worker_port is not None:
            server = _server(config, texts, models, tls, is_local=False)
            port = bind(server, config.host, config.worker_port, tls)
            await _serve(stack, server)
            _log.info("workers_may_join", port=port)
        yield


def _owner(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Digest of a caller's certificate; without certificates the same for all."""
    certificate = b"".join(context.auth_context().get("x509_pem_cert", ()))
    return hashlib.sha256(certificate).hexdigest()


def _server(
    config: TokenizerConfig, texts: LongTexts, models: ServedModels, tls: Tls, *, is_local: bool
) -> grpc.aio.Server:
    server = make_server(tls, max_message_bytes=config.max_message_bytes, max_calls=_MAX_CALLS)
    work = TokenizerWorkService(texts.workers, is_local=is_local)
    tokenizer_pb2_grpc.add_TokenizerWorkServiceServicer_to_server(work, server)
    server.add_generic_rpc_handlers((_vocabulary_handler(models, config.vocabulary_timeout_s),))
    return server


def _vocabulary_handler(models: ServedModels, timeout_s: float) -> grpc.GenericRpcHandler:
    """The one method of TokenizerService that workers need: the vocabularies of their parts."""

    async def get_vocabulary(
        request: tokenizer_pb2.GetVocabularyRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[tokenizer_pb2.GetVocabularyResponse]:
        pieces = send_vocabulary(models, request, timeout_s)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    handler = grpc.unary_stream_rpc_method_handler(
        get_vocabulary,
        request_deserializer=tokenizer_pb2.GetVocabularyRequest.FromString,
        response_serializer=tokenizer_pb2.GetVocabularyResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(_SERVICE, {"GetVocabulary": handler})


async def _serve(stack: AsyncExitStack, server: grpc.aio.Server) -> None:
    await server.start()
    stack.push_async_callback(server.stop, _LAST_ANSWERS_S)
