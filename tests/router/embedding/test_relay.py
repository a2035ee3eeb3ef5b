"""Requests for vectors through a router, over real gRPC, while replicas come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from outrider.errors import OutriderError, OverloadedError
from outrider.testing import eventually, leak_check
from outrider.v1 import embedding_pb2, embedding_pb2_grpc, inference_pb2
from outrider.wire import error_from_proto
from services.router.admission.pricing import Price
from services.router.admission.tenants import TenantPolicy
from services.router.embedding.policy import EmbeddingPolicy
from services.router.embedding.relay import EmbeddingRelay
from tests.router.replica import Replica, RouterUnderTest, running_replicas, running_router


class Embedder(Replica, embedding_pb2_grpc.EmbeddingServiceServicer):
    """Its vector of an input is the input's number, once it may answer."""

    def __init__(self, name: str, identity: bytes = b"one") -> None:
        super().__init__(name)
        self.model, self.identity = "e", identity
        self.taken: list[int] = []
        self.opened: list[embedding_pb2.OpenEmbed] = []
        self.may_answer = asyncio.Event()
        self.num_calls = 0

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
    ) -> AsyncIterator[embedding_pb2.EmbedResponse]:
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
                    yield vectors([given.id])
        finally:
            self.num_calls -= 1


def vectors(ids: list[int]) -> embedding_pb2.EmbedResponse:
    told = embedding_pb2.Vectors(ids=ids, num_tokens=[5] * len(ids), dimensions=1, data=b"1234")
    return embedding_pb2.EmbedResponse(vectors=told)


@asynccontextmanager
async def mesh(
    *replicas: Embedder, **settings: Any
) -> AsyncIterator[tuple[RouterUnderTest, embedding_pb2_grpc.EmbeddingRouterServiceAsyncStub]]:
    async with running_replicas(*replicas), running_router(*replicas, **settings) as router:
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


async def test_replicas_that_die_one_after_the_other_under_load_lose_nothing() -> None:
    """None of the first two answers anything, so that all inputs come to the third."""
    replicas = [Embedder(name) for name in ("one", "two", "three")]
    first, second, third = replicas
    async with mesh(*replicas, embedding=SMALL) as (_, stub):
        calls = [await asked(stub.Embed(), range(10)) for _ in range(12)]
        await eventually(lambda: sum(len(it.taken) for it in replicas) >= 12 * 2)
        await first.kill()
        await eventually(lambda: not first.num_calls)
        await second.kill()
        await eventually(lambda: len(third.taken) >= 12 * 2)
        third.may_answer.set()
        for found, failed, done in await asyncio.gather(*map(answers_of, calls)):
            assert not failed and sorted(found) == list(range(10))
            assert done.usage.prompt_tokens == 50, "each is counted once"


async def test_a_single_replica_that_comes_back_gets_them_again() -> None:
    one = Embedder("one")
    async with mesh(one) as (router, stub):
        call = await asked(stub.Embed(), range(3))
        await eventually(lambda: len(one.taken) == 3)
        await one.kill()
        one.may_answer.set()
        await one.start()
        found, failed, _ = await answers_of(call)
        assert sorted(found) == [0, 1, 2] and not failed
        assert await router.replicas()


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


async def test_nobody_is_left_who_computes_the_same() -> None:
    one, other = Embedder("one"), Embedder("other", identity=b"two")
    async with mesh(one, other, return_s=0.1) as (_, stub):
        call = await asked(stub.Embed(), range(4))
        await eventually(lambda: len(one.taken) == 4 or len(other.taken) == 4)
        taker, left = (one, other) if one.taken else (other, one)
        left.may_answer.set()
        await taker.kill()
        found, failed, _ = await answers_of(call)
    assert not found and not left.taken
    assert {it.reason for it in failed.values()} == {"NO_REPLICA"}


@pytest.mark.parametrize(
    ("opened", "reason"), [({"model": "m"}, "UNKNOWN_MODEL"), ({"residency": ["x"]}, "NO_REPLICA")]
)
async def test_inputs_that_nobody_can_embed(opened: dict[str, Any], reason: str) -> None:
    one = Embedder("one")
    async with mesh(one, return_s=0.1) as (_, stub):
        found, failed, _ = await answers_of(await asked(stub.Embed(), [7], **opened))
    assert not found and failed[7].reason == reason


async def test_a_request_above_the_bounds_is_refused_and_leaves_nothing() -> None:
    one = Embedder("one")
    bounds = EmbeddingPolicy(max_inputs=3)
    async with mesh(one, embedding=bounds) as (_, stub):
        with pytest.raises(OverloadedError):
            await answers_of(await asked(stub.Embed(), range(4)))
        held = await asked(stub.Embed(), range(3))
        await eventually(lambda: len(one.taken) >= 3)
        with pytest.raises(OverloadedError):
            await answers_of(await asked(stub.Embed(), [9]))
        held.cancel()
        await eventually(lambda: one.num_calls == 0)
        one.may_answer.set()
        assert (await answers_of(await asked(stub.Embed(), range(3))))[0]


async def test_limits_of_tenants_hold() -> None:
    one = Embedder("one")
    one.may_answer.set()
    tenants = (TenantPolicy("acme", tokens_per_minute=100),)
    async with mesh(one, tenants=tenants) as (_, stub):
        for _ in range(2):
            call = await asked(stub.Embed(), range(8), tenant="acme", estimated_tokens=60)
            assert len((await answers_of(call))[0]) == 8
        with pytest.raises(OverloadedError, match="acme"):
            call = await asked(stub.Embed(), [1], tenant="acme", estimated_tokens=60)
            await answers_of(call)


async def test_frames_that_are_out_of_place() -> None:
    one = Embedder("one")
    async with mesh(one) as (_, stub):
        call = stub.Embed()
        await call.write(embedding_pb2.EmbedRequest(inputs=embedding_pb2.EmbedInputs()))
        with pytest.raises(OutriderError, match="begins with its open"):
            await answers_of(call)
        with pytest.raises(OutriderError, match="number 1"):
            await answers_of(await asked(stub.Embed(), [1, 1]))
