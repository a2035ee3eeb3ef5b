"""Vectors by way of routers, of which one is lost, over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc.aio
import numpy as np
import pytest

from outrider.errors import (
    OverloadedError,
    PeerFaultError,
    PromptTooLongError,
    UnavailableError,
)
from outrider.rpc import bind, make_channel, make_server
from outrider.session.types import Priority
from outrider.v1 import embedding_pb2, embedding_pb2_grpc
from outrider.wire import MAX_AT_ONCE_INPUTS, error_to_proto
from services.edge.upstream.embedding import (
    EmbeddingQuery,
    InputError,
    embedded,
)
from services.edge.upstream.pool import RouterPool
from tests.embedding_frames import frames_of

Answer = embedding_pb2.EmbedResponse
QUERY = EmbeddingQuery(
    "r", "e", [f"text {i}" for i in range(300)] + [b"\1\0\0\0"], "t", Priority.LOW, ()
)
"""In frames."""
SHORT = EmbeddingQuery("r", "e", QUERY.inputs[-MAX_AT_ONCE_INPUTS:], "t", Priority.LOW, ())
"""In one message."""
DONE = Answer(done=embedding_pb2.EmbedDone(model="e"))


class Router(embedding_pb2_grpc.EmbeddingRouterServiceServicer):
    """Answers so many inputs, each by its number, and then what it is told to."""

    def __init__(self, most: int = 1 << 20, *last: Answer) -> None:
        self.most, self.last = most, last or (DONE,)
        self.opened: list[embedding_pb2.OpenEmbed] = []
        self.taken: list[int] = []
        self.num_at_once = 0

    async def Embed(self, request_iterator: Any, context: Any) -> AsyncIterator[Answer]:
        async for frame in request_iterator:
            if frame.HasField("open"):
                self.opened.append(frame.open)
            for given in frame.inputs.inputs:
                self.taken.append(given.id)
                if len(self.taken) <= self.most:
                    yield vector(given.id)
        for answer in self.last:
            yield answer

    async def EmbedAtOnce(
        self, request: embedding_pb2.EmbedAtOnceRequest, context: Any
    ) -> embedding_pb2.EmbedAtOnceResponse:
        self.num_at_once += 1

        answers = [answer async for answer in self.Embed(frames_of(request), context)]
        return embedding_pb2.EmbedAtOnceResponse(answers=answers)


def vector(number: int, data: bytes | None = None) -> Answer:
    value = np.array([number], "<f4").tobytes() if data is None else data
    f32 = embedding_pb2.VECTOR_FORMAT_F32
    told = embedding_pb2.Vectors(ids=[number], num_tokens=[2], dimensions=1, format=f32, data=value)
    return Answer(vectors=told)


class Pool:
    """The least that is wanted of a pool: the routers in order."""

    may_return = False

    def __init__(self, channels: list[grpc.aio.Channel]) -> None:
        self._channels = channels
        self.num_heard = 0

    def pick(self, avoid: Collection[str] = ()) -> Any:
        pool, channel = self, self._channels[len(avoid) % len(self._channels)]

        class Link:
            address = str(len(avoid))

            embedding = embedding_pb2_grpc.EmbeddingRouterServiceStub(channel)

            def heard(self) -> None:
                pool.num_heard += 1

        return Link()


@asynccontextmanager
async def pool_of(*routers: Router) -> AsyncIterator[RouterPool]:
    servers, channels = [], []
    for router in routers:
        server = make_server()
        embedding_pb2_grpc.add_EmbeddingRouterServiceServicer_to_server(router, server)
        port = bind(server, "127.0.0.1", 0)
        await server.start()
        servers.append(server)
        channels.append(make_channel(f"127.0.0.1:{port}"))
    try:
        yield cast("RouterPool", Pool(channels))
    finally:
        for channel in channels:
            await channel.close()
        for server in servers:
            await server.stop(None)


either_way = pytest.mark.parametrize("query", [QUERY, SHORT], ids=["frames", "at once"])


@either_way
async def test_vectors_come_in_the_order_of_the_inputs(query: EmbeddingQuery) -> None:
    router, count = Router(), len(query.inputs)
    async with pool_of(router) as pool:
        found = await embedded(pool, query)
        assert cast("Pool", pool).num_heard >= 1, "every answer says that the router is there"
    assert found.vectors[:, 0].tolist() == list(range(count))
    assert (found.num_tokens, found.cost) == (2 * count, None)
    (opened,) = router.opened
    assert (opened.model, opened.tenant, opened.priority) == ("e", "t", 1)
    assert opened.estimated_tokens > count
    assert router.num_at_once == (query is SHORT)


async def test_few_inputs_with_much_text_go_in_frames() -> None:
    router, texts = Router(), ["a" * (1 << 18)] * 5
    async with pool_of(router) as pool:
        await embedded(pool, EmbeddingQuery("r", "e", texts, "t", Priority.LOW, ()))
    assert router.num_at_once == 0 and len(router.taken) == 5


@either_way
async def test_another_router_is_asked_for_all_vectors_again(query: EmbeddingQuery) -> None:
    """The replica of those that a lost one had answered may have been of another identity."""
    lost, other, count = Router(20, *[]), Router(), len(query.inputs)
    lost.last = (Answer(error=error_to_proto(UnavailableError("it stops"))),)
    async with pool_of(lost, other) as pool:
        found = await embedded(pool, query)
    assert found.vectors[:, 0].tolist() == list(range(count))
    assert found.num_tokens == 2 * count
    assert len(other.taken) == count


@either_way
async def test_a_router_whose_channel_is_closed_is_lost(query: EmbeddingQuery) -> None:
    """As its link does once it is silent, and the call is then said to be cancelled."""
    heard, never = asyncio.Event(), asyncio.Event()

    class Silent(Router):
        async def Embed(self, request_iterator: Any, context: Any) -> AsyncIterator[Answer]:
            heard.set()
            await never.wait()
            yield DONE

    async with pool_of(Silent(), Router()) as pool:
        asking = asyncio.create_task(embedded(pool, query))
        await asyncio.wait_for(heard.wait(), 60)
        await cast("Pool", pool)._channels[0].close()
        assert len((await asking).vectors) == len(query.inputs)


@either_way
async def test_who_does_not_want_it_any_more_ends_the_call(query: EmbeddingQuery) -> None:
    heard, ended, never = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Silent(Router):
        async def Embed(self, request_iterator: Any, context: Any) -> AsyncIterator[Answer]:
            heard.set()
            try:
                await never.wait()
            finally:
                ended.set()
            yield DONE

    async with pool_of(Silent()) as pool:
        asking = asyncio.create_task(embedded(pool, query))
        await asyncio.wait_for(heard.wait(), 60)
        asking.cancel()
        await asyncio.wait_for(ended.wait(), 60)
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_router_that_was_lost_a_moment_ago_is_waited_for() -> None:
    class Away(Pool):
        may_return = True
        num_asked = 0

        def pick(self, avoid: Collection[str] = ()) -> Any:
            self.num_asked += 1
            if self.num_asked < 3:
                raise UnavailableError("no router can be reached")
            return super().pick(avoid)

    async with pool_of(Router()) as pool:
        away = Away(cast("Pool", pool)._channels)
        assert len((await embedded(cast("RouterPool", away), QUERY)).vectors) == 301
        away.num_asked, away.may_return = 0, False
        with pytest.raises(UnavailableError):
            await embedded(cast("RouterPool", away), QUERY)


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (Answer(error=error_to_proto(OverloadedError("full"))), OverloadedError),
        (Answer(error=error_to_proto(UnavailableError("gone"))), UnavailableError),
        (DONE, PeerFaultError),
        (vector(0), PeerFaultError),
        (vector(999), PeerFaultError),
        (vector(5, b"123"), PeerFaultError),
    ],
)
@either_way
async def test_what_routers_may_say_instead(
    last: Answer, error: type[Exception], query: EmbeddingQuery
) -> None:
    async with pool_of(Router(1, last)) as pool:
        with pytest.raises(error):
            await embedded(pool, query)


@either_way
async def test_an_input_without_a_vector_ends_the_request(query: EmbeddingQuery) -> None:
    failed = embedding_pb2.InputFailed(id=7, error=error_to_proto(PromptTooLongError("long")))
    async with pool_of(Router(1, Answer(failed=failed))) as pool:
        with pytest.raises(InputError) as raised:
            await embedded(pool, query)
    assert raised.value.index == 7
    assert isinstance(raised.value.error, PromptTooLongError)
