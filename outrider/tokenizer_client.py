"""Long texts to ids by tokenizer services, which split them over their workers.

Whatever no service does, for it is away, refuses, is too slow, or has enough to do, is left to the
caller, who can do it: `encode` gives None. Ids that come are those of the caller's own vocabulary:
every block has a checksum over them and its digest.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

import grpc.aio
import structlog

from outrider.bounds import PositiveFloat, PositiveInt, check_bounds
from outrider.circuit_breaker import CircuitBreaker, CircuitBreakerPolicy
from outrider.codec.tokens import TokenCoder
from outrider.errors import (
    BadTokenBlockError,
    InvalidRequestError,
    OverloadedError,
    PoisonousRequestError,
    UnknownModelError,
    VocabularyMismatchError,
    VocabularyUnavailableError,
)
from outrider.fair_work.turns import ANYBODY, Requester
from outrider.models.chat import check_text
from outrider.peers.discovery import Discovery
from outrider.peers.membership import DiscoveryPolicy, parse_target
from outrider.rpc import LOSSES, end_call, loss_reason, loss_text, make_channel
from outrider.telemetry.families import Family
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.v1 import common_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from outrider.wire import requester_to_proto, token_block_from_proto

LONG_TEXTS: Final = Family(
    "outrider_long_texts",
    "Long texts by who tokenized them: a tokenizer service, or this process.",
)

_PIECE_CHARS: Final = 1 << 16
"""Of a text, in one message."""
_MAX_MESSAGE_BYTES: Final = 16 << 20
_MAX_IDS_PER_CHAR: Final = 4
"""A character has at most four bytes, and no byte more than one id."""
_FIND_S: Final = 5.0
_REFUSALS: Final = (
    InvalidRequestError,
    OverloadedError,
    PoisonousRequestError,
    UnknownModelError,
    VocabularyMismatchError,
    VocabularyUnavailableError,
)
"""Errors with which a service that is well refuses a text, its model, or more texts for now."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LongTextsConfig:
    """Which texts tokenizer services tokenize. Raises ConfigError."""

    tokenizers: tuple[str, ...] = ()
    """Tokenizer services, `HOST:PORT`, `dns:HOST:PORT` or `srv:NAME`; empty: none, all texts are
    tokenized here."""
    discovery: DiscoveryPolicy = field(default_factory=DiscoveryPolicy)
    """How the names in `tokenizers` are looked up."""
    min_chars: PositiveInt = 1 << 17
    """Shorter texts are tokenized here."""
    max_in_flight: PositiveInt = 4
    """Texts at services at once; further ones are tokenized here."""
    timeout_s: PositiveFloat = 10.0
    """A text that a service has not done after so long is tokenized here."""

    def __post_init__(self) -> None:
        check_bounds(self)
        for tokenizer in self.tokenizers:
            parse_target(tokenizer, "each of long_texts.tokenizers")


@dataclass(frozen=True, slots=True)
class TextVocabulary:
    """In which vocabulary a text is to be tokenized."""

    model: str
    digest: bytes
    coder: TokenCoder


class TokenizerClient:
    """Belongs to one event loop. Without `start` it looks for nothing and uses what `joined`."""

    def __init__(
        self,
        config: LongTextsConfig,
        *,
        tls: Tls = PLAINTEXT,
        record: Callable[[str], None] = lambda who: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`record` is told of each long text whether a "service" or this "process" tokenizes it.
        Raises ConfigError without name servers for what is to be looked up."""
        self._config = config
        self._tls = tls
        self._record = record
        self._clock = clock
        self._services: dict[str, _Service] = {}
        """By address."""
        self._discovery = Discovery(
            [parse_target(text, "each of long_texts.tokenizers") for text in config.tokenizers],
            self,
            policy=config.discovery,
            clock=clock,
            rng=Random(),
        )
        self._is_found = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Look for services from now on."""
        if self._config.tokenizers:
            self._running = asyncio.create_task(self._discovery.run())

    async def find(self, timeout_s: float) -> None:
        """`start`, and return once a service is found, or after so long."""
        self.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_found.wait()

    async def close(self) -> None:
        """End what is under way."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await asyncio.gather(*(it.close() for it in self._services.values()), *self._closing)

    def takes(self, num_chars: int) -> bool:
        """Whether a text of so many characters is long, and there is a service for it."""
        return bool(self._services) and num_chars >= self._config.min_chars

    async def encode(
        self, text: str, vocabulary: TextVocabulary, requester: Requester = ANYBODY
    ) -> array[int] | None:
        """The ids ('I') of plain text; None: no service has tokenized it. `requester`: with whom
        workers are shared; by default this host. Raises InvalidRequestError for a lone
        surrogate."""
        if not self.takes(len(text)):
            return None
        check_text(text)
        service = self._chosen()
        ids = None if service is None else await self._tried(service, text, vocabulary, requester)
        self._record("process" if ids is None else "service")
        return ids

    def joined(self, address: str, source: str) -> None:
        """A service was found."""
        self._services[address] = _Service(address, self._tls)
        self._is_found.set()

    def returned(self, address: str) -> None:
        """One that was to leave is found again: it was not kept, and is found anew."""

    def is_lost(self, address: str) -> bool:
        """Whether it failed of late."""
        return self._services[address].breaker.is_open

    def left(self, address: str) -> None:
        """One is not found any more: it gets no more texts."""
        service = self._services.pop(address)
        closing = asyncio.create_task(service.close(2 * self._config.timeout_s))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._discovery.forget(address)

    def _chosen(self) -> _Service | None:
        """The one that has least of this process to do, of those that did not fail of late."""
        services = sorted(self._services.values(), key=lambda it: it.num_in_flight)
        if sum(it.num_in_flight for it in services) >= self._config.max_in_flight:
            return None
        now = self._clock()
        return next((it for it in services if it.breaker.allows(now)), None)

    async def _tried(
        self, service: _Service, text: str, vocabulary: TextVocabulary, requester: Requester
    ) -> array[int] | None:
        service.num_in_flight += 1
        try:
            async with asyncio.timeout(self._config.timeout_s):
                ids = await service.tokenize(text, vocabulary, requester)
        except LOSSES as loss:
            if isinstance(loss, grpc.aio.AioRpcError) and isinstance(loss_reason(loss), _REFUSALS):
                service.breaker.succeeded()  # others' texts may go there
            else:
                service.breaker.failed(self._clock())
            _log.warning("long_text_kept", tokenizer=service.address, why=loss_text(loss))
            return None
        finally:
            service.num_in_flight -= 1
        service.breaker.succeeded()
        return ids


class BlockingTokenizerClient:
    """`TokenizerClient.encode` in the one vocabulary, for a thread without an event loop."""

    def __init__(self, config: LongTextsConfig, tls: Tls, vocabulary: TextVocabulary) -> None:
        """Raises ConfigError."""
        self._runner = asyncio.Runner()
        self._vocabulary = vocabulary
        self._client = TokenizerClient(config, tls=tls)
        self._is_started = False

    def encode(self, text: str) -> array[int] | None:
        """As `TokenizerClient.encode`."""
        return self._runner.run(self._encode(text))

    def close(self) -> None:
        """End it."""
        self._runner.run(self._client.close())
        self._runner.close()

    async def _encode(self, text: str) -> array[int] | None:
        if not self._is_started:
            self._is_started = True
            await self._client.find(_FIND_S)
        return await self._client.encode(text, self._vocabulary)


class _Service:
    """One tokenizer service."""

    def __init__(self, address: str, tls: Tls) -> None:
        """Raises ConfigError for an address that takes certificates, which are not there."""
        self.address = address
        self.num_in_flight = 0
        self.breaker = CircuitBreaker(CircuitBreakerPolicy())
        self._tls = tls
        self._generation = tls.generation
        self._channel = self._new_channel()

    async def close(self, grace_s: float | None = None) -> None:
        """End what is still under way after so long, None: at once."""
        await self._channel.close(grace_s)

    async def tokenize(
        self, text: str, vocabulary: TextVocabulary, requester: Requester
    ) -> array[int]:
        """The ids of a text. Raises what the service answers, VocabularyMismatchError and
        BadTokenBlockError for what is not of this vocabulary, and what gRPC raises."""
        if self._generation != self._tls.generation and self.num_in_flight == 1:
            old, self._channel = self._channel, self._new_channel()
            self._generation = self._tls.generation
            await old.close()
        stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(self._channel)
        call = stub.Tokenize(_requests(text, vocabulary, requester))
        found = array("I")
        try:
            async for answer in call:
                room = _MAX_IDS_PER_CHAR * len(text) - len(found)
                found.frombytes(_ids(answer, vocabulary, max_count=room))
        finally:
            end_call(call)
        return found

    def _new_channel(self) -> grpc.aio.Channel:
        return make_channel(
            self.address,
            tls=self._tls,
            role=Role.TOKENIZER,
            max_message_bytes=_MAX_MESSAGE_BYTES,
        )


async def _requests(
    text: str, vocabulary: TextVocabulary, requester: Requester
) -> AsyncIterator[tokenizer_pb2.TokenizeRequest]:
    codecs = map(common_pb2.TokenCodec.ValueType, vocabulary.coder.supported)
    yield tokenizer_pb2.TokenizeRequest(
        model=vocabulary.model,
        text=text[:_PIECE_CHARS],
        codecs=codecs,
        vocabulary_digest=vocabulary.digest,
        requester=requester_to_proto(requester),
    )
    for begin in range(_PIECE_CHARS, len(text), _PIECE_CHARS):
        yield tokenizer_pb2.TokenizeRequest(text=text[begin : begin + _PIECE_CHARS])


def _ids(
    answer: tokenizer_pb2.TokenizeResponse, vocabulary: TextVocabulary, *, max_count: int
) -> bytes:
    """Native uint32."""
    if answer.vocabulary_digest != vocabulary.digest:
        raise VocabularyMismatchError(
            f"vocabulary {vocabulary.digest.hex()} of model {vocabulary.model} was asked for, and "
            f"ids of {answer.vocabulary_digest.hex()} came"
        )
    block = token_block_from_proto(answer.ids)
    if block.checksum is None:
        raise BadTokenBlockError("a token block has no checksum; send it with one")
    return vocabulary.coder.decode_array(block, max_count=max_count).tobytes()
