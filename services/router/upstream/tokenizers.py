"""Tokenizer services as the router uses them: one stream each, failover in the order given."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from outrider.errors import (
    OutriderError,
    OverloadedError,
    UnavailableError,
    UnknownModelError,
    VocabularyMismatchError,
    VocabularyUnavailableError,
)
from outrider.peers.discovery import Discovery
from outrider.peers.health import Quarantine, QuarantinePolicy
from outrider.peers.membership import DiscoveryPolicy, Target
from outrider.peers.stall_free_clock import StallFreeClock
from outrider.rpc import end_call, from_rpc_error, make_channel, until_distrusted
from outrider.telemetry import names
from outrider.telemetry.tracing import span
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.v1 import common_pb2, inference_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from outrider.wire import error_from_proto, requester_to_proto
from services.router.fleet.registry import Registry
from services.router.relay.frames import RelayedSession, requester_of
from services.router.relay.switch import Switch

MAX_ASKED: Final = 4
"""Tokenizers that one prompt is offered to, one after the other."""

_ORIGIN_SHARE: Final = 3
"""Most waiting prompts of one origin, as a multiple of the free places: a single one gets three
quarters of the places, and later ones still find some (dynamic thresholds, Choudhury and Hahne,
IEEE/ACM Transactions on Networking 6(2), 1998)."""

_MAX_VOCABULARIES: Final = 2
"""Most vocabularies of one model that are tried: while a model is replaced, its replicas have the
old one and the new one."""

_OF_ONE_MODEL: Final = (VocabularyUnavailableError, VocabularyMismatchError, UnknownModelError)
"""Errors of a tokenizer that concern one model: another tokenizer may have it, and this one serves
others. If none has it, the session gets the first such error, in this order of classes."""

_RETURN_PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Pauses before a prompt is offered again to tokenizers of which none could be reached. When they
are replaced one after the other, the last one may end before this router has reconnected to the one
before: gRPC tries that every 2 seconds."""

_QUARANTINE: Final = QuarantinePolicy(first_s=5.0)
"""How long a tokenizer that did not answer is asked last."""

_log = structlog.get_logger()

_EncodeCall = grpc.aio.StreamStreamCall[tokenizer_pb2.EncodeRequest, tokenizer_pb2.EncodeResponse]


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A prompt as ids."""

    ids: common_pb2.TokenBlock
    vocabulary_digest: bytes


@dataclass(slots=True)
class _Ranked:
    stream: TokenizerStream
    rank: int
    """The least is asked first."""
    is_leaving: bool = False
    quarantine: Quarantine = field(default_factory=lambda: Quarantine(_QUARANTINE))

    def is_last(self, now: float) -> bool:
        """Whether it is asked after all others, since it did not answer."""
        return self.quarantine.is_active and now < self.quarantine.until

    def asked(self, now: float) -> None:
        """A prompt goes to it. Once its pause is over that is a trial, and further prompts go to
        others until it answers."""
        if self.quarantine.is_active and not self.is_last(now):
            self.quarantine.begin(now)

    def failed(self, now: float) -> None:
        """Record that it did not answer. If it had many prompts at once, only the first one
        counts."""
        if not self.is_last(now):
            self.quarantine.begin(now)

    def answered(self, now: float) -> None:
        """Record an answer, even one that it cannot serve the prompt."""
        if self.quarantine.is_active:
            self.quarantine.clear(now)


class TokenizerStream:
    """One Encode stream to one tokenizer, opened on first use and again after a loss."""

    def __init__(self, address: str, *, max_message_bytes: int, tls: Tls = PLAINTEXT) -> None:
        """Raises ConfigError for an address that takes certificates, which are not there."""
        self.address = address
        self._max_message_bytes = max_message_bytes
        self._tls = tls
        self._channel, self._generation = self._new_channel(), tls.generation
        self._closing: asyncio.Task[None] | None = None
        self._call: _EncodeCall | None = None
        self._reader: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._write: asyncio.Task[None] | None = None
        """The last write; possibly nobody waits for it any more."""
        self._waiting: dict[int, asyncio.Future[Tokenized]] = {}
        self._last_number = 0
        self._withdrawing: set[asyncio.Task[None]] = set()

    @property
    def num_waiting(self) -> int:
        """Requests that it has not answered yet."""
        return len(self._waiting)

    async def encode(self, request: tokenizer_pb2.EncodeRequest) -> Tokenized:
        """Tokenize; the request gets a number of this stream. Raises what the tokenizer answers,
        and UnavailableError when its stream breaks. Cancelled, it withdraws the request."""
        call, reader = self._open()
        self._last_number += 1
        number = self._last_number
        # A copy: a write that nobody waits for any more may serialise it while the caller asks
        # another stream the same.
        numbered = tokenizer_pb2.EncodeRequest()
        numbered.CopyFrom(request)
        numbered.number = number
        answer: asyncio.Future[Tokenized] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await self._send(call, numbered)
            return await answer
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                self._withdraw(call, number)
                raise
            # Only the write raises these: the call ended, whatever status gRPC makes of it; of one
            # that this side ended, that the write was cancelled. Its reader sees that too once it
            # gets a turn, and the next request opens a new stream.
            await asyncio.wait([reader])
            raise UnavailableError(f"tokenizer {self.address} ended its stream") from error
        finally:
            self._waiting.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen: the write may have failed first

    async def _send(self, call: _EncodeCall, request: tokenizer_pb2.EncodeRequest) -> None:
        """Send requests one after the other. If a caller is cancelled during a write, the write
        continues: gRPC ends the whole call if a write is cancelled."""
        async with self._writing:
            if self._write is not None:
                await asyncio.wait([self._write])
            self._write = asyncio.create_task(call.write(request))
            self._write.add_done_callback(_seen)
            await asyncio.shield(self._write)

    def _withdraw(self, call: _EncodeCall, number: int) -> None:
        """Tell the tokenizer that nobody waits for a request any more."""

        async def tell() -> None:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                withdrawn = tokenizer_pb2.EncodeRequest(number=number, withdrawn=True)
                await self._send(call, withdrawn)

        task = asyncio.create_task(tell())
        self._withdrawing.add(task)
        task.add_done_callback(self._withdrawing.discard)

    async def close(self) -> None:
        """End the stream and all requests that wait on it."""
        for task in self._withdrawing:
            task.cancel()
        await asyncio.gather(*self._withdrawing, return_exceptions=True)
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._write is not None:
            self._write.cancel()
            await asyncio.gather(self._write, return_exceptions=True)
        await self._channel.close()
        if self._closing is not None:
            await self._closing

    def _new_channel(self) -> grpc.aio.Channel:
        return make_channel(
            self.address,
            tls=self._tls,
            role=Role.TOKENIZER,
            max_message_bytes=self._max_message_bytes,
        )

    def _renew(self) -> None:
        """Show the certificate of now, once no stream is on the connection with the older one."""
        old, self._channel = self._channel, self._new_channel()
        self._generation = self._tls.generation
        self._closing = asyncio.create_task(old.close())

    def _open(self) -> tuple[_EncodeCall, asyncio.Task[None]]:
        """The stream, and the task that reads it."""
        if self._call is None or self._reader is None:
            if self._generation != self._tls.generation:
                self._renew()
            stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub
            stub = tokenizer_pb2_grpc.TokenizerServiceStub(self._channel)
            self._call = stub.Encode()
            self._reader = asyncio.create_task(self._read(self._call))
        return self._call, self._reader

    async def _read(self, call: _EncodeCall) -> None:
        lost = "it ended its stream"
        watching = asyncio.create_task(self._watch(call))
        try:
            async for response in call:
                self._settle(response)
        except grpc.aio.AioRpcError as error:
            lost = f"it broke its stream: {from_rpc_error(error).message}"
        except DecodeError:
            lost = "it sent bytes that are no answer"
        finally:
            watching.cancel()
            end_call(call)
            self._call = None
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(UnavailableError(f"tokenizer {self.address}: {lost}"))

    async def _watch(self, call: _EncodeCall) -> None:
        """End the stream when the tokenizer's certificate is good no more."""
        try:
            await until_distrusted(self.address, tls=self._tls, role=Role.TOKENIZER)
        except UnavailableError:
            call.cancel()

    def _settle(self, response: tokenizer_pb2.EncodeResponse) -> None:
        answer = self._waiting.get(response.number)
        if answer is None or answer.done():
            return  # given up on meanwhile
        if response.WhichOneof("result") == "ids":
            answer.set_result(Tokenized(response.ids, response.vocabulary_digest))
        else:
            answer.set_exception(error_from_proto(response.error))


class _NoneReachedError(Exception):
    """No tokenizer could be connected to, or all ended their streams. Stays in this module."""

    def __init__(self, told: UnavailableError) -> None:
        """`told`: what the session gets if that does not change."""
        super().__init__(told.message)
        self.told = told


class TokenizerPool:
    """Asks tokenizers in turn until one answers.

    At most `max_waiting` prompts wait, shared among those who ask (origins of `Requester`).
    Tokenizers of the first target come first; within a target, the one with the least waiting
    prompts. One that did not answer comes last for a while. The owner has to run `run`, and to call
    `tick` regularly.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        *,
        policy: DiscoveryPolicy,
        clock: StallFreeClock,
        rng: Random,
        timeout_s: float,
        max_waiting: int,
        max_message_bytes: int,
        tls: Tls = PLAINTEXT,
    ) -> None:
        self._tls = tls
        self._ranks = {target.text: rank for rank, target in enumerate(targets)}
        self._discovery = Discovery(targets, self, policy=policy, clock=clock, rng=rng)
        self._streams: dict[str, _Ranked] = {}
        """By address."""
        self._closing: set[asyncio.Task[None]] = set()
        self._clock = clock
        self._timeout_s = timeout_s
        self._max_waiting = max_waiting
        self._max_message_bytes = max_message_bytes
        self._num_waiting: Counter[str] = Counter()
        """Prompts by origin."""

    @property
    def is_settled(self) -> bool:
        """Whether every target was looked up, or tried in vain, once."""
        return self._discovery.is_settled

    async def run(self) -> None:
        """Look the tokenizers up for ever."""
        await self._discovery.run()

    def tick(self) -> None:
        """Close the streams of tokenizers that have left."""
        for address, entry in list(self._streams.items()):
            if entry.is_leaving and not entry.stream.num_waiting:
                del self._streams[address]
                self._discovery.forget(address)
                task = asyncio.create_task(entry.stream.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    def joined(self, address: str, source: str) -> None:
        """A tokenizer was found."""
        stream = TokenizerStream(address, max_message_bytes=self._max_message_bytes, tls=self._tls)
        self._streams[address] = _Ranked(stream, self._ranks[source])

    def returned(self, address: str) -> None:
        """One that was to leave is found again."""
        self._streams[address].is_leaving = False

    def is_lost(self, address: str) -> bool:
        """Whether a prompt found it gone of late, and none found it back since."""
        return self._streams[address].is_last(self._clock())

    def left(self, address: str) -> None:
        """One is not found any more: it gets no more prompts."""
        self._streams[address].is_leaving = True

    async def encode(self, request: tokenizer_pb2.EncodeRequest) -> Tokenized:
        """Tokenize one prompt. Raises UnavailableError if no tokenizer answers in time,
        OverloadedError if too many prompts wait, in total or of the requester's origin, one of
        `_OF_ONE_MODEL` if none has the model's vocabulary, and the errors of tokenizers about the
        prompt. Cancelled, it withdraws the prompt from the tokenizer."""
        origin = request.requester.origin
        own, free = self._num_waiting[origin], self._max_waiting - self._num_waiting.total()
        if own >= _ORIGIN_SHARE * free:
            raise OverloadedError(
                f"too many prompts wait for a tokenizer, {own} of them yours; try again, or send "
                "token ids",
                retry_delay_ms=500,
            )
        self._num_waiting[origin] += 1
        try:
            return await self._first_answer(request)
        finally:
            self._num_waiting[origin] -= 1
            if not self._num_waiting[origin]:
                del self._num_waiting[origin]

    async def close(self) -> None:
        """End all streams."""
        for entry in self._streams.values():
            await entry.stream.close()
        await asyncio.gather(*self._closing)

    async def _first_answer(self, request: tokenizer_pb2.EncodeRequest) -> Tokenized:
        """Offer a prompt to tokenizers, and again while none can be reached and there is time."""
        until, pauses_s = self._clock() + self._timeout_s, iter(_RETURN_PAUSES_S)
        while True:
            try:
                return await self._offered(request, until - self._clock())
            except _NoneReachedError as none:
                pause_s = next(pauses_s, self._timeout_s)
                if self._clock() + pause_s >= until:
                    raise none.told from None
                await asyncio.sleep(pause_s)

    async def _offered(self, request: tokenizer_pb2.EncodeRequest, limit_s: float) -> Tokenized:
        failures: list[str] = []
        refusals: dict[type[OutriderError], OutriderError] = {}
        entries, num_silent = self._ranked(), 0
        for entry in entries:
            entry.asked(self._clock())
            try:
                async with self._clock.timeout(limit_s / len(entries)):
                    answer = await self._asked(entry.stream, request)
            except (OverloadedError, *_OF_ONE_MODEL) as error:
                entry.answered(self._clock())
                refusals[type(error)] = error
            except UnavailableError as error:
                failures.append(f"{entry.stream.address}: {error.message}")
                entry.failed(self._clock())
            except TimeoutError:
                failures.append(f"{entry.stream.address}: no answer in time")
                num_silent += 1
                entry.failed(self._clock())
            except OutriderError:
                entry.answered(self._clock())
                raise
            else:
                entry.answered(self._clock())
                return answer
        if overload := refusals.get(OverloadedError):
            raise overload
        for kind in _OF_ONE_MODEL:
            if (refusal := refusals.get(kind)) and not failures:
                raise refusal
        told = _none_answers(failures)
        if refusals or num_silent or not entries:
            raise told
        raise _NoneReachedError(told)

    async def _asked(
        self, stream: TokenizerStream, request: tokenizer_pb2.EncodeRequest
    ) -> Tokenized:
        """Again on another stream, where the first broke because this router was late."""
        try:
            return await stream.encode(request)
        except UnavailableError:
            if not self._clock.stalled_recently:
                raise
            return await stream.encode(request)

    def _ranked(self) -> list[_Ranked]:
        """At most a few of many: each gets its share of the time. Those that did not answer are
        last for a while, so that not every prompt waits for them first."""
        now = self._clock()
        able = [entry for entry in self._streams.values() if not entry.is_leaving]
        able.sort(key=lambda it: (it.is_last(now), it.rank, it.stream.num_waiting))
        return able[:MAX_ASKED]


class PromptTokenization:
    """Converts the messages of sessions into ids, outside the relay, so that its frames need not
    wait."""

    def __init__(
        self, pool: TokenizerPool, registry: Registry, *, clock: Callable[[], float]
    ) -> None:
        self._pool = pool
        self._registry = registry
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, switch: Switch, session: RelayedSession) -> Callable[[], object]:
        """Tokenize the session's messages; the switch hears of it. Returns what gives it up."""
        task = asyncio.create_task(self._tokenize(switch, session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task.cancel

    async def close(self) -> None:
        """Give up all running work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pool.close()

    async def _tokenize(self, switch: Switch, session: RelayedSession) -> None:
        if session.replay is None:
            return  # it ended before this task ran
        try:
            answer = await self.tokenize(session.open_frame.open)
        except OutriderError as error:
            switch.fail(session, error, self._clock())
        except Exception:
            # A defect fails this session alone; unanswered it would wait for its ids for ever.
            _log.exception("tokenization_failed")
            failure = OutriderError("the router failed on this session; see its log")
            switch.fail(session, failure, self._clock())
        else:
            switch.tokenized(session, answer.ids, answer.vocabulary_digest, self._clock())

    async def tokenize(self, opening: inference_pb2.OpenSession) -> Tokenized:
        """Ids of an open's messages, in a vocabulary that some replica has. The tokenizer also gets
        the number of tokens that fit some replica. Raises the errors of tokenizers."""
        trace = (opening.trace.traceparent, opening.trace.tracestate)
        with span(names.SPAN_TOKENIZE, parent=trace) as opened:
            codecs = self._registry.codecs_of(opening.model)
            request = tokenizer_pb2.EncodeRequest(
                model=opening.model,
                conversation=tokenizer_pb2.Conversation(
                    messages=opening.messages.messages,
                    prefixed=opening.messages.prefixed,
                    tools=opening.messages.tools,
                    template_variables=opening.messages.template_variables,
                ),
                codecs=map(common_pb2.TokenCodec.ValueType, codecs),
                cache_salt=opening.cache_salt,
                requester=requester_to_proto(requester_of(opening)),
                # A token of the context is the reply's; 0: no replica has said how long it is.
                max_prompt_tokens=max(0, self._registry.longest_context(opening.model) - 1),
            )
            request.trace.traceparent, request.trace.tracestate = opened.context
            return await self._in_one_of(request, opening)

    async def _in_one_of(
        self, request: tokenizer_pb2.EncodeRequest, opening: inference_pb2.OpenSession
    ) -> Tokenized:
        """In the first of them that a tokenizer has; while nodes are replaced, not all have all."""
        why: OutriderError | None = None
        for digest in self._registry.vocabularies_of(opening.model)[:_MAX_VOCABULARIES]:
            request.vocabulary_digest = digest
            try:
                return await self._pool.encode(request)
            except (VocabularyMismatchError, UnavailableError, OverloadedError) as error:
                is_final = why is None or isinstance(why, VocabularyMismatchError)
                why = error if is_final else why
        if why is not None:
            raise why
        # No replica is there yet: placement says so.
        return await self._pool.encode(request)


def longest_wait_s(timeout_s: float) -> float:
    """Longest time in which PromptTokenization answers, with a margin; `timeout_s`: timeout of its
    pool."""
    return (_MAX_VOCABULARIES + 1) * timeout_s


def _is_cancelled() -> bool:
    """Whether the running task itself is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _seen(write: asyncio.Task[None]) -> None:
    if not write.cancelled():
        write.exception()


def _none_answers(failures: Sequence[str]) -> UnavailableError:
    return UnavailableError(
        "no tokenizer answers, so messages cannot be served "
        f"({'; '.join(failures) or 'none is configured'}); send token ids, or try again",
        retry_delay_ms=500,
    )
