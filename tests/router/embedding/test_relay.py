"""Requests for vectors through a router, over real gRPC, while replicas come and go."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from outrider.errors import MalformedFrameError, OutriderError, OverloadedError
from outrider.testing import eventually, leak_check
from outrider.v1 import embedding_pb2, embedding_pb2_grpc, inference_pb2
from outrider.wire import error_from_proto
from services.router.admission.pricing import Price
from services.router.admission.tenants import TenantPolicy
from services.router.embedding.policy import EmbeddingPolicy
from services.router.embedding.relay import EmbeddingRelay
from tests.embedding_frames import frames_of
from tests.router.integration.test_app import get
from tests.router.replica import Replica, RouterUnderTest, routed


class Embedder(Replica, embedding_pb2_grpc.EmbeddingServiceServicer):
    """Its vector of an input is the input's number, once it may answer."""

    def __init__(self, name: str, identity: bytes = b"one") -> None:
        super().__init__(name)
        self.model, self.identity = "e", identity
        self.taken: list[int] = []
        self.opened: list[embedding_pb2.OpenEmbed] = []
        self.may_answer = asyncio.Event()
        self.num_calls = self.num_at_once = 0
        self.skipped: set[int] = set()
        """Inputs that it does not answer."""

    def register(self, server: grpc.aio.Server) -> None:
        super().register(server)
        embedding_pb2_grpc.add_EmbeddingServiceServicer_to_server(self, server)

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: Any
    ) -> inference_pb2.GetModelResponse:
        told = await super().GetModel(request, context)
        told.embedding_dimensions = 1
        return told

    async def Embed(
        self, request_iterator: Any, context: Any
    ) -> AsyncGenerator[embedding_pb2.EmbedResponse, None]:
        self.num_calls += 1
        try:
            async for frame in request_iterator:
                if frame.HasField("open"):
                    self.opened.append(frame.open)
                for given in frame.inputs.inputs:
                    self.taken.append(given.id)
                if frame.inputs.inputs:
                    await self.may_answer.wait()
                for given in frame.inputs.inputs:
                    if given.id not in self.skipped:
                        yield vectors([given.id])
        finally:
            self.num_calls -= 1

    async def EmbedAtOnce(
        self, request: embedding_pb2.EmbedAtOnceRequest, context: Any
    ) -> embedding_pb2.EmbedAtOnceResponse:
        self.num_at_once += 1
        async with aclosing(self.Embed(frames_of(request), context)) as answers:
            found = [answer async for answer in answers]
        done = embedding_pb2.EmbedResponse(done=embedding_pb2.EmbedDone(model="e"))
        return embedding_pb2.EmbedAtOnceResponse(answers=[*found, done])


def vectors(ids: list[int]) -> embedding_pb2.EmbedResponse:
    told = embedding_pb2.Vectors(ids=ids, num_tokens=[5] * len(ids), dimensions=1, data=b"1234")
    return embedding_pb2.EmbedResponse(vectors=told)


@asynccontextmanager
async def mesh(
    *replicas: Embedder, **settings: Any
) -> AsyncIterator[tuple[RouterUnderTest, embedding_pb2_grpc.EmbeddingRouterServiceAsyncStub]]:
    async with routed(*replicas, **settings) as router:
        stub: embedding_pb2_grpc.EmbeddingRouterServiceAsyncStub
        stub = embedding_pb2_grpc.EmbeddingRouterServiceStub(router.channel)
        for replica in replicas:
            await router.state_of(replica.name, 2)  # type: ignore[arg-type]
        yield router, stub


async def asked(call: Any, ids: Iterable[int], **opened: Any) -> Any:
    """An open request with these inputs, which has all that it will have."""
    opened = {"model": "e", **opened}
    await call.write(embedding_pb2.EmbedRequest(open=embedding_pb2.OpenEmbed(**opened)))
    inputs = [embedding_pb2.EmbedInput(id=number, text="some text") for number in ids]
    await call.write(embedding_pb2.EmbedRequest(inputs=embedding_pb2.EmbedInputs(inputs=inputs)))
    await call.done_writing()
    return call


async def answers_of(call: Any) -> tuple[list[int], dict[int, OutriderError], Any]:
    """Inputs that were answered, those that failed, and the last frame."""
    found, failed = list[int](), dict[int, OutriderError]()
    async for answer in call:
        if answer.HasField("error"):
            call.cancel()
            raise error_from_proto(answer.error)
        if answer.HasField("done"):
            return found, failed, answer.done
        if answer.HasField("failed"):
            failed[answer.failed.id] = error_from_proto(answer.failed.error)
        else:
            found += answer.vectors.ids
    raise AssertionError("there was no last frame")


async def at_once(
    stub: embedding_pb2_grpc.EmbeddingRouterServiceAsyncStub, ids: Iterable[int], **opened: Any
) -> tuple[list[int], dict[int, OutriderError], Any]:
    """As `answers_of`, of a request in one message."""
    wish = embedding_pb2.OpenEmbed(**{"model": "e", **opened})
    request = embedding_pb2.EmbedAtOnceRequest(open=wish)
    for number in ids:
        request.inputs.add(id=number, text="some text")

    async def answers() -> AsyncIterator[embedding_pb2.EmbedResponse]:
        for answer in (await stub.EmbedAtOnce(request)).answers:
            if answer.HasField("error"):
                raise error_from_proto(answer.error)
            yield answer

    return await answers_of(answers())


async def streamed(
    stub: embedding_pb2_grpc.EmbeddingRouterServiceAsyncStub, ids: Iterable[int], **opened: Any
) -> tuple[list[int], dict[int, OutriderError], Any]:
    """As `at_once`, of a request as a stream."""
    return await answers_of(await asked(stub.Embed(), ids, **opened))


SMALL = EmbeddingPolicy(part_inputs=2)


async def test_a_request_is_spread_and_put_together() -> None:
    one, two = Embedder("one"), Embedder("two")
    one.may_answer.set()
    two.may_answer.set()
    prices = (Price(prompt_per_million=2.0, reply_per_million=1.0),)
    async with (
        leak_check(),
        mesh(one, two, embedding=SMALL, prices=prices, currency="USD") as (
            _,
            stub,
        ),
    ):
        # So many that a round trip, whatever this machine makes of it, is little beside them.
        call = await asked(stub.Embed(), range(500), model="")
        found, failed, done = await answers_of(call)
    assert sorted(found) == list(range(500)) and not failed
    assert one.taken and two.taken
    assert sorted(one.taken + two.taken) == list(range(500))
    assert (done.model, done.model_identity, done.usage.prompt_tokens) == ("e", b"one", 2500)
    assert done.usage.cost.amount_nanos == 5_000_000
    assert all(it.model == "e" and it.model_identity == b"one" for it in one.opened)


async def test_inputs_of_a_replica_that_dies_are_answered_once_by_another() -> None:
    one, two = Embedder("one"), Embedder("two")
    two.may_answer.set()
    async with mesh(one, two, embedding=SMALL) as (_, stub):
        call = await asked(stub.Embed(), range(8))
        await eventually(lambda: len(one.taken) == 2)
        await one.kill()
        found, failed, _ = await answers_of(call)
    assert sorted(found) == list(range(8)) and not failed
    assert set(one.taken) <= set(two.taken)


async def test_inputs_of_a_connection_that_is_closed_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those to all replicas are once the router's certificate is another one."""
    relays: list[EmbeddingRelay] = []
    made = EmbeddingRelay.__init__

    def noted(self: EmbeddingRelay, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        relays.append(self)

    monkeypatch.setattr(EmbeddingRelay, "__init__", noted)
    one = Embedder("one")
    async with mesh(one) as (_, stub):
        call = await asked(stub.Embed(), range(3))
        await eventually(lambda: len(one.taken) == 3)
        await relays[0].close()
        one.may_answer.set()
        found, failed, _ = await answers_of(call)
    assert sorted(found) == [0, 1, 2] and not failed


async def test_a_model_that_nobody_has_is_no_label_of_costs() -> None:
    one = Embedder("one")
    one.may_answer.set()
    prices = (Price(prompt_per_million=2.0, reply_per_million=1.0),)
    async with mesh(one, prices=prices, currency="USD") as (router, stub):
        assert (await at_once(stub, [7], model="bogus"))[1][7].reason == "UNKNOWN_MODEL"
        assert (await at_once(stub, [7]))[0] == [7]
        async with asyncio.timeout(60):
            charged = re.compile("outrider_router_tenant_cost_total{.*e.*} 1e-05")
            while not charged.search(metrics := await get(router.ports.admin, "/metrics")):
                await asyncio.sleep(0.02)
        assert "bogus" not in metrics


async def test_what_a_request_holds_of_the_bounds_is_free_once_it_ends() -> None:
    one = Embedder("one")
    bounds = EmbeddingPolicy(max_inputs=3)
    async with mesh(one, embedding=bounds) as (_, stub):
        held = await asked(stub.Embed(), range(3))
        await eventually(lambda: len(one.taken) >= 3)
        with pytest.raises(OverloadedError):
            await answers_of(await asked(stub.Embed(), [9]))
        held.cancel()
        await eventually(lambda: one.num_calls == 0)
        one.may_answer.set()
        assert (await answers_of(await asked(stub.Embed(), range(3))))[0]


async def test_a_tenant_is_charged_for_what_was_more_than_estimated() -> None:
    one = Embedder("one")
    one.may_answer.set()
    tenants = (TenantPolicy("acme", tokens_per_minute=100),)
    async with mesh(one, tenants=tenants) as (_, stub):
        call = await asked(stub.Embed(), range(200), tenant="acme", estimated_tokens=1)
        assert (await answers_of(call))[2].usage.prompt_tokens == 1000
        with pytest.raises(OverloadedError, match="acme"):  # for nine minutes
            await answers_of(await asked(stub.Embed(), [1], tenant="acme", estimated_tokens=1))


async def test_a_request_begins_with_its_open() -> None:
    one = Embedder("one")
    async with mesh(one) as (_, stub):
        call = stub.Embed()
        await call.write(embedding_pb2.EmbedRequest(inputs=embedding_pb2.EmbedInputs()))
        with pytest.raises(OutriderError, match="begins with its open"):
            await answers_of(call)


async def test_a_request_in_one_message_is_passed_on_as_one() -> None:
    one = Embedder("one")
    one.may_answer.set()
    prices = (Price(prompt_per_million=2.0, reply_per_million=1.0),)
    async with leak_check(), mesh(one, prices=prices, currency="USD") as (_, stub):
        for _ in range(3):
            found, failed, done = await at_once(stub, range(32), tenant="acme")
            assert sorted(found) == list(range(32)) and not failed
            assert (done.model, done.model_identity) == ("e", b"one")
            assert done.usage.prompt_tokens == 160
            assert done.usage.cost.amount_nanos == 320_000
    assert one.num_at_once == 2, "the first finds no connection, and goes as a stream"
    assert [opened.tenant for opened in one.opened] == ["acme"] * 3


async def test_a_request_in_one_message_may_be_spread_all_the_same() -> None:
    one, two = Embedder("one"), Embedder("two")
    async with mesh(one, two, embedding=SMALL) as (_, stub):
        for replica in (one, two):
            replica.may_answer.set()
        found, failed, done = await at_once(stub, range(32))
        assert sorted(found) == list(range(32)) and not failed
        assert done.usage.prompt_tokens == 160
        assert one.taken and two.taken and not (one.num_at_once or two.num_at_once)


async def test_a_request_in_one_message_whose_replica_dies_goes_to_another() -> None:
    one, two = Embedder("one"), Embedder("two")
    both = (one, two)
    async with mesh(*both) as (_, stub):
        for replica in both:
            replica.may_answer.set()
        while not all(replica.num_at_once for replica in both):
            await at_once(stub, range(3))
        for replica in both:
            replica.may_answer.clear()
            replica.taken.clear()
        asking = asyncio.create_task(at_once(stub, range(5)))
        await eventually(lambda: len(one.taken + two.taken) == 5)
        taker, other = both if one.taken else (two, one)
        await taker.kill()
        other.may_answer.set()
        found, failed, done = await asking
    assert sorted(found) == sorted(other.taken) == list(range(5)) and not failed
    assert done.usage.prompt_tokens == 25, "each is counted once"


async def test_inputs_that_a_replica_leaves_out_are_asked_for_elsewhere() -> None:
    one, two = Embedder("one"), Embedder("two")
    async with mesh(one, two) as (_, stub):
        for replica in (one, two):
            replica.may_answer.set()
        while not (one.num_at_once and two.num_at_once):
            await at_once(stub, range(3))
        one.skipped = {1, 4}
        for _ in range(8):
            found, failed, _ = await at_once(stub, range(6))
            assert not failed
            assert sorted(found) == list(range(6))


@pytest.mark.parametrize("ask", [streamed, at_once])
async def test_bounds_of_requests_and_tenants_hold(ask: Any) -> None:
    one = Embedder("one")
    one.may_answer.set()
    tenants = (TenantPolicy("acme", tokens_per_minute=100),)
    bounds = EmbeddingPolicy(max_inputs=8)
    async with mesh(one, embedding=bounds, tenants=tenants, return_s=0.1) as (_, stub):
        with pytest.raises(OverloadedError):
            await ask(stub, range(9))
        with pytest.raises(MalformedFrameError, match="number 1"):
            await ask(stub, [1, 1])
        assert (await ask(stub, [7], model="m"))[1][7].reason == "UNKNOWN_MODEL"
        assert (await ask(stub, [7], residency=["x"]))[1][7].reason == "NO_REPLICA"
        for _ in range(2):
            asked_for = {"tenant": "acme", "estimated_tokens": 60}
            assert len((await ask(stub, range(8), **asked_for))[0]) == 8
        with pytest.raises(OverloadedError, match="acme"):
            await ask(stub, [1], tenant="acme", estimated_tokens=60)
        with pytest.raises(MalformedFrameError, match="at most 32"):
            await at_once(stub, range(33))


async def test_who_leaves_a_request_in_one_message_ends_it_at_the_replica() -> None:
    one = Embedder("one")
    bounds = EmbeddingPolicy(max_inputs=3)
    async with mesh(one, embedding=bounds) as (_, stub):
        one.may_answer.set()
        await at_once(stub, [0])
        one.may_answer.clear()
        asking = asyncio.create_task(at_once(stub, range(3)))
        await eventually(lambda: one.num_at_once == 1 and len(one.taken) == 4)
        asking.cancel()
        await eventually(lambda: one.num_calls == 0)
        one.may_answer.set()
        assert len((await at_once(stub, range(3)))[0]) == 3, "nothing is held of it"
