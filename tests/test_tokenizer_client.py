"""Long texts handed to a tokenizer service: its ids are the whole text's, and whatever it does not
do is left to the caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from outrider.codec.tokens import TokenCoder
from outrider.errors import ConfigError, InvalidRequestError
from outrider.models.vocabulary import Vocabulary
from outrider.rpc import make_server
from outrider.testing import FakeClock, eventually, free_tcp_port
from outrider.tls import Role, TlsConfig
from outrider.tokenizer_client import LongTextsConfig, TextVocabulary, TokenizerClient
from outrider.v1 import tokenizer_pb2
from services.tokenizer.app import SERVICE
from services.tokenizer_worker.app import serve as serve_worker
from services.tokenizer_worker.config import TokenizerWorkerConfig
from tests.service import running_service
from tests.tls.issuing import Issuer
from tests.tokenizer.long_texts.test_texts import once_not_refused
from tests.tokenizer.running import MODEL, TokenizerUnderTest, running_tokenizer, successor

pytestmark = pytest.mark.model

TEXT = "Some words, 12 numbers and a line.\n" * 300


def of(vocabulary: Vocabulary, model: str = MODEL) -> TextVocabulary:
    return TextVocabulary(model, vocabulary.digest, TokenCoder(vocabulary.digest, vocabulary.size))


@asynccontextmanager
async def service_with_a_worker(
    vocabulary: Vocabulary, **settings: Any
) -> AsyncIterator[TokenizerUnderTest]:
    """Both in this process; `worker_tls` is the worker's certificate."""
    port = free_tcp_port()
    worker = TokenizerWorkerConfig(
        services=(f"127.0.0.1:{port}",),
        tls=settings.pop("worker_tls", TlsConfig()),
        log_level="critical",
        max_reconnect_s=0.2,
    )
    quick = {"worker_processes": 0, "worker_port": port, "part_chars": 1_000}
    async with (
        running_tokenizer(vocabulary, **(quick | settings)) as service,
        running_service(serve_worker, worker),
    ):
        await once_not_refused(service, "UNAVAILABLE")
        yield service


@asynccontextmanager
async def client_of(*addresses: str, **settings: Any) -> AsyncIterator[TokenizerClient]:
    """A client that knows these services, and whom it told that a text was done by."""
    options = {name: settings.pop(name) for name in ("tls", "record", "clock") if name in settings}
    client = TokenizerClient(LongTextsConfig(min_chars=1_000, **settings), **options)
    for address in addresses:
        client.joined(address, address)
    try:
        yield client
    finally:
        await client.close()


async def test_the_ids_are_those_of_the_whole_text(vocabulary: Vocabulary) -> None:
    told: list[str] = []
    async with (
        service_with_a_worker(vocabulary) as service,
        client_of(service.address, record=told.append) as client,
    ):
        ids = await client.encode(TEXT, of(vocabulary))
        assert ids is not None and ids.tolist() == vocabulary.encode(TEXT)
        assert await client.encode("short", of(vocabulary)) is None
        with pytest.raises(InvalidRequestError):
            await client.encode(TEXT + "\ud800", of(vocabulary))
        assert told == ["service"], "short texts are nobody's affair"


async def test_a_service_of_another_vocabulary_or_model_makes_no_ids(
    vocabulary: Vocabulary,
) -> None:
    told: list[str] = []
    async with (
        service_with_a_worker(vocabulary) as service,
        client_of(service.address, record=told.append) as client,
    ):
        assert await client.encode(TEXT, of(successor(vocabulary))) is None
        assert await client.encode(TEXT, of(vocabulary, "unknown")) is None
        assert await client.encode(TEXT, of(vocabulary)) is not None
        assert told == ["process", "process", "service"]


async def test_an_edge_may_hand_texts_over_and_a_replica_may_not(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    """Tokenize names its callers: outrider.tls.access."""
    issuer = Issuer(tmp_path)
    settings = {"tls": issuer.config(Role.TOKENIZER), "caller": issuer.tls(Role.ROUTER)}
    async with running_tokenizer(vocabulary, **settings, worker_processes=1) as service:
        for role, is_served in ((Role.EDGE, True), (Role.INFERENCE, False)):
            async with client_of(service.address, tls=issuer.tls(role), timeout_s=60.0) as client:
                assert (await client.encode(TEXT, of(vocabulary)) is not None) == is_served


class Hanging:
    """Never answers a text."""

    def __init__(self) -> None:
        self.num_texts = 0

    async def tokenize(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[tokenizer_pb2.TokenizeResponse]:
        self.num_texts += 1
        await asyncio.Event().wait()
        yield tokenizer_pb2.TokenizeResponse()

    def handler(self) -> grpc.GenericRpcHandler:
        method = grpc.stream_stream_rpc_method_handler(
            self.tokenize,
            request_deserializer=tokenizer_pb2.TokenizeRequest.FromString,
            response_serializer=tokenizer_pb2.TokenizeResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Tokenize": method})


@asynccontextmanager
async def hanging() -> AsyncIterator[tuple[Hanging, str]]:
    servicer, server = Hanging(), make_server()
    server.add_generic_rpc_handlers((servicer.handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_bounds_are_filled_and_the_rest_stays_here(vocabulary: Vocabulary) -> None:
    """Two texts at a service that hangs, and no third one."""
    async with hanging() as (service, address), client_of(address, max_in_flight=2) as client:
        held = [asyncio.create_task(client.encode(TEXT, of(vocabulary))) for _ in range(2)]
        await eventually(lambda: service.num_texts == 2)
        assert await client.encode(TEXT, of(vocabulary)) is None
        assert service.num_texts == 2
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)


async def test_a_service_that_is_too_slow_is_left_alone_for_a_while(
    vocabulary: Vocabulary,
) -> None:
    clock = FakeClock()
    async with hanging() as (service, address):
        async with client_of(address, timeout_s=0.05, clock=clock) as client:
            for _ in range(5):
                assert await client.encode(TEXT, of(vocabulary)) is None
            assert service.num_texts == 3, "the circuit is open"
            clock.advance(60.0)
            assert await client.encode(TEXT, of(vocabulary)) is None
            assert service.num_texts == 4, "one is tried"


async def test_texts_of_one_user_that_are_refused_leave_the_service_to_others(
    vocabulary: Vocabulary,
) -> None:
    """Only a service that is unwell is left alone: one that refuses a text answers."""
    uncut, unknown = "x" * 5_000, of(vocabulary, "unknown")
    settings = {"part_chars": 100, "max_part_chars": 1_000, "max_long_texts": 1}
    async with (
        service_with_a_worker(vocabulary, **settings) as service,
        client_of(service.address) as client,
    ):
        for text, wanted in ((uncut, of(vocabulary)), (TEXT, unknown)):
            for _ in range(4):
                assert await client.encode(text, wanted) is None
            assert await client.encode(TEXT, of(vocabulary)) is not None
        other = service.stub.Tokenize()
        await other.write(tokenizer_pb2.TokenizeRequest(text=TEXT))
        await other.read()  # it has begun, and may not end: the service is full
        for _ in range(4):
            assert await client.encode(TEXT, of(vocabulary)) is None
        other.cancel()
        await once_not_refused(service, "OVERLOADED")
        assert await client.encode(TEXT, of(vocabulary)) is not None


async def test_a_service_that_is_away_costs_no_text(vocabulary: Vocabulary) -> None:
    async with client_of(f"127.0.0.1:{free_tcp_port()}") as client:
        assert await client.encode(TEXT, of(vocabulary)) is None
    async with client_of() as client:
        assert await client.encode(TEXT, of(vocabulary)) is None


async def test_services_are_found_by_their_names_and_left(vocabulary: Vocabulary) -> None:
    async with hanging() as (service, address), client_of(tokenizers=(address,)) as client:
        client.start()
        await eventually(lambda: client.takes(1_000))
        task = asyncio.create_task(client.encode(TEXT, of(vocabulary)))
        await eventually(lambda: service.num_texts == 1)
        client.left(address)
        assert not client.takes(1_000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="long_texts"):
        LongTextsConfig(tokenizers=("nowhere",))
