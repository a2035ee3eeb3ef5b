"""Tokenizers as the router uses them: numbers, failover, limits. Scripted tokenizers, real gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from typing import Any

import grpc.aio
import pytest

from outrider.errors import (
    EmptyPromptError,
    OutriderError,
    OverloadedError,
    UnavailableError,
    UnknownModelError,
    VocabularyMismatchError,
    VocabularyUnavailableError,
)
from outrider.peers.membership import DiscoveryPolicy, parse_target
from outrider.peers.stall_free_clock import StallFreeClock
from outrider.rpc import bind, make_server
from outrider.testing import eventually, free_tcp_port, leak_check
from outrider.v1 import common_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from outrider.wire import error_to_proto
from services.router.upstream.tokenizers import TokenizerPool, TokenizerStream

Request = tokenizer_pb2.EncodeRequest
Response = tokenizer_pb2.EncodeResponse


class Scripted(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Holds requests until told to answer; a text's ids are its length."""

    def __init__(self) -> None:
        self.held: list[Request] = []
        self.withdrawn: list[int] = []
        """Numbers of requests that nobody waits for any more."""
        self.error: OutriderError | None = None
        self.is_holding = False
        self.is_reading = True
        self.num_streams = self.num_asked = 0
        self.address = ""
        self._release = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    def release(self) -> None:
        self._release.set()

    async def Encode(
        self, request_iterator: AsyncIterator[Request], context: Any
    ) -> AsyncIterator[Response]:
        self.num_streams += 1
        if not self.is_reading:
            await asyncio.Event().wait()
        async for request in request_iterator:
            if request.withdrawn:
                self.withdrawn.append(request.number)
                continue
            self.num_asked += 1
            self.held.append(request)
            if self.is_holding and not self._release.is_set():
                continue
            # What was held comes out last first.
            while self.held:
                yield self._answer(self.held.pop())

    def _answer(self, request: Request) -> Response:
        if self.error is not None:
            return Response(number=request.number, error=error_to_proto(self.error))
        ids = common_pb2.TokenBlock(count=len(request.text))
        return Response(number=request.number, ids=ids, vocabulary_digest=b"d")

    async def start(self, port: int = 0) -> None:
        self._server = make_server()
        tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{bind(self._server, '127.0.0.1', port)}"
        await self._server.start()

    async def kill(self) -> None:
        assert self._server is not None
        await self._server.stop(grace=None)


@asynccontextmanager
async def running(count: int) -> AsyncIterator[list[Scripted]]:
    tokenizers = [Scripted() for _ in range(count)]  # type: ignore[abstract]
    for tokenizer in tokenizers:
        await tokenizer.start()
    try:
        yield tokenizers
    finally:
        for tokenizer in tokenizers:
            await tokenizer.kill()


@asynccontextmanager
async def pool_of(
    *addresses: str, now: Callable[[], float] = time.monotonic, **settings: Any
) -> AsyncIterator[TokenizerPool]:
    values: dict[str, Any] = {"timeout_s": 5.0, "max_waiting": 100, "max_message_bytes": 1 << 20}
    targets = [parse_target(address, "an address") for address in addresses]
    pool = TokenizerPool(
        targets,
        policy=DiscoveryPolicy(),
        clock=StallFreeClock(clock=now),
        rng=Random(1),
        **(values | settings),
    )
    looking = asyncio.create_task(pool.run())
    try:
        await eventually(lambda: pool.is_settled)
        yield pool
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await pool.close()


async def test_answers_find_their_requests_in_any_order() -> None:
    async with leak_check(), running(1) as (tokenizer,), pool_of(tokenizer.address) as pool:
        tokenizer.is_holding = True
        asked = [asyncio.create_task(pool.encode(Request(text="x" * n))) for n in range(1, 6)]
        await eventually(lambda: len(tokenizer.held) == 5)
        tokenizer.release()
        last = await pool.encode(Request(text="x" * 6))
        assert [(await task).ids.count for task in asked] == [1, 2, 3, 4, 5]
        assert (last.ids.count, last.vocabulary_digest) == (6, b"d")


async def test_what_a_tokenizer_says_of_the_request_is_final() -> None:
    async with running(2) as (first, second), pool_of(first.address, second.address) as pool:
        first.error = EmptyPromptError("has no text")
        with pytest.raises(EmptyPromptError, match="has no text"):
            await pool.encode(Request(text="x"))


@pytest.mark.parametrize("kind", [UnknownModelError, VocabularyUnavailableError])
async def test_a_tokenizer_that_lacks_a_model_is_passed_over_and_asked_for_others(
    kind: type[OutriderError],
) -> None:
    async with running(2) as (first, second), pool_of(first.address, second.address) as pool:
        first.error = kind("not this model")
        assert (await pool.encode(Request(text="xx"))).ids.count == 2
        second.error = first.error
        with pytest.raises(kind, match="not this model"):
            await pool.encode(Request(text="xx"))
        first.error, second.error = None, OverloadedError("busy")
        assert (await pool.encode(Request(text="xx"))).ids.count == 2, "it is still asked first"


async def test_an_overloaded_tokenizer_is_passed_over() -> None:
    async with running(2) as (first, second), pool_of(first.address, second.address) as pool:
        first.error = OverloadedError("busy", retry_delay_ms=7)
        assert (await pool.encode(Request(text="xx"))).ids.count == 2
        second.error = first.error
        with pytest.raises(OverloadedError) as caught:
            await pool.encode(Request(text="xx"))
        assert caught.value.retry_delay_ms == 7


async def test_a_tokenizer_without_the_vocabulary_is_passed_over() -> None:
    async with running(2) as (first, second), pool_of(first.address, second.address) as pool:
        first.error = VocabularyMismatchError("the old one is served here")
        assert (await pool.encode(Request(text="xx"))).ids.count == 2
        second.error = first.error
        with pytest.raises(VocabularyMismatchError, match="the old one"):
            await pool.encode(Request(text="xx"))
        await second.kill()
        with pytest.raises(UnavailableError):  # who is away may have it
            await pool.encode(Request(text="xx"))


async def test_an_absent_tokenizer_is_passed_over_and_then_asked_last() -> None:
    absent = f"127.0.0.1:{free_tcp_port()}"
    async with leak_check(), running(1) as (there,), pool_of(absent, there.address) as pool:
        for text in ("x", "xx"):
            assert (await pool.encode(Request(text=text))).ids.count == len(text)
    async with pool_of(absent) as pool:
        with pytest.raises(UnavailableError, match=f"no tokenizer answers.*{absent}"):
            await pool.encode(Request(text="x"))


async def test_a_silent_tokenizer_costs_its_share_of_the_time_once() -> None:
    async with running(2) as (silent, there):
        silent.is_holding = True
        async with pool_of(silent.address, there.address, timeout_s=0.2) as pool:
            for text in ("x", "xx", "xxx"):
                assert (await pool.encode(Request(text=text))).ids.count == len(text)
            assert len(silent.held) == 1


async def test_a_tokenizer_that_answers_again_has_its_own_place_again() -> None:
    now = 0.0
    async with (
        running(2) as (first, second),
        pool_of(first.address, second.address, now=lambda: now) as pool,
    ):

        async def asked(at: float) -> tuple[int, int]:
            """How many prompts each had of one that came then."""
            nonlocal now
            now = at
            before = first.num_asked, second.num_asked
            await pool.encode(Request(text="x"))
            return first.num_asked - before[0], second.num_asked - before[1]

        first.error = UnavailableError("not now")
        assert await asked(0.0) == (1, 1)
        assert pool.is_lost(first.address) and not pool.is_lost(second.address)
        first.error = None
        assert await asked(4.9) == (0, 1)
        assert await asked(5.0) == (1, 0) == await asked(5.1), "it is the first target's"
        assert not pool.is_lost(first.address)


async def test_a_tokenizer_that_fails_again_is_asked_ever_more_seldom() -> None:
    now = 0.0
    async with (
        running(2) as (first, second),
        pool_of(first.address, second.address, now=lambda: now) as pool,
    ):
        first.error = UnavailableError("not now")
        asked_at = list[float]()
        for _ in range(400):
            before = first.num_asked
            await pool.encode(Request(text="x"))
            asked_at += [now] * (first.num_asked - before)
            now += 1.0
        pauses = [after - before for before, after in pairwise(asked_at)]
        assert pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0, 60.0, 60.0]


async def test_one_prompt_tries_a_tokenizer_that_did_not_answer() -> None:
    """Others do not wait for it."""
    now = 0.0
    async with (
        leak_check(),
        running(2) as (first, second),
        pool_of(first.address, second.address, now=lambda: now) as pool,
    ):
        first.error = UnavailableError("not now")
        await asyncio.gather(*(pool.encode(Request(text="x")) for _ in range(9)))
        first.error, first.is_holding, now = None, True, 5.0
        trial = asyncio.create_task(pool.encode(Request(text="xx")))
        await eventually(lambda: len(first.held) == 1)
        for _ in range(3):
            await pool.encode(Request(text="xxx"))
        assert len(first.held) == 1 and pool.is_lost(first.address)
        first.release()
        now = 15.0
        assert (await pool.encode(Request(text="xxxx"))).ids.count == 4
        assert (await trial).ids.count == 2
        assert not pool.is_lost(first.address)


async def test_a_tokenizer_that_dies_fails_over_and_is_found_again() -> None:
    async with leak_check(), running(2) as (first, second):
        first.is_holding = True
        async with pool_of(first.address, second.address) as pool:
            waiting = asyncio.create_task(pool.encode(Request(text="xxx")))
            await eventually(lambda: len(first.held) == 1)
            await first.kill()
            assert (await waiting).ids.count == 3
            await second.kill()
            with pytest.raises(UnavailableError):
                await pool.encode(Request(text="x"))
            await second.start(int(second.address.split(":")[1]))
            async with asyncio.timeout(60):
                while True:
                    try:
                        answer = await pool.encode(Request(text="xxxx"))
                    except UnavailableError:
                        continue
                    break
            assert answer.ids.count == 4


async def test_a_prompt_waits_for_the_last_tokenizer_to_come_back() -> None:
    async with leak_check(), running(1) as (tokenizer,), pool_of(tokenizer.address) as pool:
        await pool.encode(Request(text="x"))
        await tokenizer.kill()
        waiting = asyncio.create_task(pool.encode(Request(text="xxx")))
        await eventually(lambda: pool.is_lost(tokenizer.address))
        await tokenizer.start(int(tokenizer.address.split(":")[1]))
        assert (await waiting).ids.count == 3


async def test_a_stream_that_ended_is_seen_by_the_next_request() -> None:
    async with leak_check(), running(1) as (tokenizer,):
        stream = TokenizerStream(tokenizer.address, max_message_bytes=1 << 20)
        await stream.encode(Request(text="x"))
        assert stream._call is not None
        stream._call.cancel()  # over at once, and its reader has not had a turn
        with pytest.raises(UnavailableError):
            await stream.encode(Request(text="x"))
        assert (await stream.encode(Request(text="xx"))).ids.count == 2
        await stream.close()


async def test_a_stream_that_ends_in_the_middle_of_a_write_fails_over() -> None:
    """gRPC cancels the writes of a call that this side ends."""
    async with leak_check(), running(2) as (full, there):
        full.is_reading = False
        async with pool_of(
            full.address, there.address, max_message_bytes=4 << 20, timeout_s=120.0
        ) as pool:
            requests = [Request(text="x" * 3_000_000) for _ in range(3)]
            asked = [asyncio.create_task(pool.encode(request)) for request in requests]
            stream = pool._streams[full.address].stream
            await eventually(
                lambda: (
                    full.num_streams == 1 and stream._write is not None and not stream._write.done()
                )
            )
            assert stream._call is not None
            stream._call.cancel()
            assert [answer.ids.count for answer in await asyncio.gather(*asked)] == [3_000_000] * 3


async def test_who_gives_up_in_the_middle_of_a_write_costs_others_nothing() -> None:
    async with leak_check(), running(1) as (tokenizer,):
        stream = TokenizerStream(tokenizer.address, max_message_bytes=1 << 20)
        await stream.encode(Request(text="x"))
        call = stream._call
        for num_turns in range(20):
            long = asyncio.create_task(stream.encode(Request(text="x" * 900_000)))
            for _ in range(num_turns):  # of the loop: before, in and after its write
                await asyncio.sleep(0)
            other = asyncio.create_task(stream.encode(Request(text="xx")))
            long.cancel()
            assert (await other).ids.count == 2
            assert stream._call is call
        await stream.close()


class Gate:
    """A port whose connections reach a tokenizer once it is opened."""

    def __init__(self, tokenizer: Scripted) -> None:
        self.opened = asyncio.Event()
        self._far = tokenizer.address.rsplit(":", 1)
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def address(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.opened.wait()
        far_reader, far_writer = await asyncio.open_connection(self._far[0], int(self._far[1]))
        for way in ((reader, far_writer), (far_reader, writer)):
            self._tasks.append(asyncio.create_task(self._pass(*way)))

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                sink.write(data)
        finally:
            sink.close()


async def test_a_write_that_was_given_up_goes_out_under_its_own_number() -> None:
    """The same prompt is asked of another stream meanwhile, where it has a number that somebody
    else has on this one."""
    async with leak_check(), running(2) as (slow, other):
        gate = Gate(slow)
        async with gate.address() as address:
            stream = TokenizerStream(address, max_message_bytes=1 << 20)
            second = TokenizerStream(other.address, max_message_bytes=1 << 20)
            await second.encode(Request(text="xx"))
            prompt = Request(text="x")
            given_up = asyncio.create_task(stream.encode(prompt))
            await eventually(lambda: stream._write is not None)
            given_up.cancel()
            await asyncio.wait([given_up])
            anothers = asyncio.create_task(stream.encode(Request(text="xxxx")))
            assert (await second.encode(prompt)).ids.count == 1
            await eventually(lambda: stream.num_waiting == 1)
            gate.opened.set()
            assert (await anothers).ids.count == 4
            await stream.close()
            await second.close()


async def test_without_tokenizers_messages_are_refused_clearly() -> None:
    async with pool_of() as pool:
        with pytest.raises(UnavailableError, match="none is configured"):
            await pool.encode(Request(text="x"))


async def test_the_number_of_waiting_prompts_is_bounded() -> None:
    async with leak_check(), running(1) as (tokenizer,):
        tokenizer.is_holding = True
        async with pool_of(tokenizer.address, max_waiting=2) as pool:
            waiting = [asyncio.create_task(pool.encode(Request(text="x"))) for _ in range(2)]
            await eventually(lambda: len(tokenizer.held) == 2)
            with pytest.raises(OverloadedError, match="2 of them yours"):
                await pool.encode(Request(text="x"))
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            tokenizer.release()
            assert (await pool.encode(Request(text="x"))).ids.count == 1


def asked_by(origin: str) -> Request:
    return Request(text="x", requester=common_pb2.Requester(origin=origin))


async def test_no_tenant_takes_the_places_of_all_others() -> None:
    async with leak_check(), running(1) as (tokenizer,):
        tokenizer.is_holding = True
        async with pool_of(tokenizer.address, max_waiting=8) as pool:

            async def waiting_of(tenant: str) -> int:
                before = len(tokenizer.held)
                prompts = [pool.encode(asked_by(tenant)) for _ in range(9)]
                asked.extend(map(asyncio.create_task, prompts))
                await eventually(
                    lambda: sum(it.done() for it in asked) + len(tokenizer.held) == len(asked)
                )
                return len(tokenizer.held) - before

            asked: list[asyncio.Task[Any]] = []
            assert [await waiting_of(name) for name in ("a", "b", "c")] == [6, 2, 0]
            refused = [it.exception() for it in asked if it.done()]
            assert len(refused) == 27 - 8
            assert all(isinstance(error, OverloadedError) for error in refused)
            for task in asked:
                task.cancel()
            await asyncio.wait(asked)
            tokenizer.release()
            assert (await pool.encode(asked_by("a"))).ids.count == 1


async def test_whoever_is_cancelled_withdraws_its_prompt() -> None:
    async with leak_check(), running(1) as (tokenizer,):
        tokenizer.is_holding = True
        async with pool_of(tokenizer.address) as pool:
            asked = [asyncio.create_task(pool.encode(Request(text="x"))) for _ in range(3)]
            await eventually(lambda: len(tokenizer.held) == 3)
            asked[1].cancel()
            await eventually(lambda: tokenizer.withdrawn == [tokenizer.held[1].number])
            tokenizer.release()
            assert (await pool.encode(Request(text="xx"))).ids.count == 2
            assert [(await one).ids.count for one in (asked[0], asked[2])] == [1, 1]


async def test_closing_a_stream_fails_what_waits() -> None:
    async with leak_check(), running(1) as (tokenizer,):
        tokenizer.is_holding = True
        stream = TokenizerStream(tokenizer.address, max_message_bytes=1 << 20)
        waiting = asyncio.create_task(stream.encode(Request(text="x")))
        await eventually(lambda: len(tokenizer.held) == 1)
        await stream.close()
        with pytest.raises(UnavailableError):
            await waiting
