"""A tokenizer service with the real vocabulary, over real gRPC on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc.aio

from outrider.models.vocabulary import Vocabulary
from outrider.process import Ports
from outrider.rpc import make_channel
from outrider.tls import PLAINTEXT, Role
from outrider.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from services.tokenizer.app import serve
from services.tokenizer.config import TokenizerConfig
from services.tokenizer.vocabularies import ServedVocabulary
from tests.service import running_service

MODEL = "smollm2-135m-instruct"


def successor(vocabulary: Vocabulary) -> Vocabulary:
    """The same tokenizer under another contract."""
    return Vocabulary(
        vocabulary.tokenizer_json, replace(vocabulary.facts, digest_hex=bytes(32).hex())
    )


class TokenizerUnderTest:
    """A running service as its clients see it."""

    def __init__(self, channel: grpc.aio.Channel, ports: Ports) -> None:
        self.channel, self.ports = channel, ports
        self.address = f"127.0.0.1:{ports.main}"
        self.stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub
        self.stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)

    async def encode(
        self, requests: Iterable[tokenizer_pb2.EncodeRequest]
    ) -> dict[int, tokenizer_pb2.EncodeResponse]:
        """Answers by number, of one stream."""
        return {answer.number: answer async for answer in self.stub.Encode(iter(requests))}

    async def admin(self, path: str) -> str:
        """The answer of the admin port, head included."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports.admin)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer.decode()

    async def decode(
        self, requests: Iterable[tokenizer_pb2.DecodeRequest]
    ) -> dict[int, tokenizer_pb2.DecodeResponse]:
        """Answers by number, of one stream."""
        return {answer.number: answer async for answer in self.stub.Decode(iter(requests))}


@asynccontextmanager
async def running_tokenizer(
    vocabulary: Vocabulary | list[ServedVocabulary] | None, **settings: Any
) -> AsyncIterator[TokenizerUnderTest]:
    """A service through its own `serve`, stopped at the end. None: it loads its vocabularies.
    Among the settings, `caller` is who calls it, by default nobody with a certificate, and `source`
    where its configuration comes from, which it follows."""
    caller = settings.pop("caller", PLAINTEXT)
    source = settings.pop("source", None)
    quick: dict[str, Any] = {"port": 0, "log_level": "critical", "drain_s": 1.0}
    config = source.read().config if source else TokenizerConfig(**(quick | settings))
    if isinstance(vocabulary, Vocabulary):
        vocabulary = [ServedVocabulary.of(MODEL, vocabulary)]
    limit = config.max_message_bytes
    async with AsyncExitStack() as until_drained:
        async with running_service(serve, config, vocabularies=vocabulary, source=source) as ports:
            channel = make_channel(
                f"127.0.0.1:{ports.main}", tls=caller, role=Role.TOKENIZER, max_message_bytes=limit
            )
            await until_drained.enter_async_context(channel)
            yield TokenizerUnderTest(channel, ports)
