"""What a session costs: told with its end, and charged once however many runs its chat had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from outrider.cost import Cost
from outrider.errors import InvalidRequestError
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import cost_of, set_cost
from services.router.admission.pricing import Price
from tests.router.relay.mesh import Mesh, accepted, cancel, commit, done, failed, opening

PRICES = (Price(1.0, 10.0), Price(2.0, 20.0, tenant="acme"))
PROMPT = 10
"""Tokens of `opening`."""


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    mesh = Mesh(prices=PRICES)
    yield mesh
    mesh.table.check_invariants()
    assert len(mesh.admission) == len(mesh.table)
    mesh.metrics.close()


def price(reply_tokens: int) -> int:
    return 1000 * (PROMPT + 10 * reply_tokens)


def charged(mesh: Mesh) -> int:
    return mesh.admission.stats.take().costs_nanos["*", "m"]


def tokens(count: int) -> common_pb2.TokenBlock:
    return common_pb2.TokenBlock(count=count, payload=b"t" * count)


async def run(mesh: Mesh, edge: int, upto: int, **fields: Any) -> int:
    """A session whose reply has so many tokens; what the near replica calls it."""
    mesh.send(edge, opening(**fields))
    sent = (await mesh.at_replica("near"))[-1]
    mesh.reply("near", accepted(sent.session))
    mesh.reply("near", commit(sent.session, upto))
    await mesh.at_edge(edge)
    return sent.session


async def ended(mesh: Mesh, edge: int, number: int) -> Cost | None:
    """The replica ends a session; what its edge is told that it costs."""
    mesh.reply("near", done(number))
    (frame,) = await mesh.at_edge(edge)
    return cost_of(frame.done.usage)


async def test_the_end_tells_what_is_charged(mesh: Mesh) -> None:
    edge = mesh.edge()
    assert await ended(mesh, edge, await run(mesh, edge, 7)) == Cost(price(7), "USD")
    assert charged(mesh) == price(7)
    dear = await ended(mesh, edge, await run(mesh, edge, 7, tenant="acme"))
    assert dear == Cost(2 * price(7), "USD")
    assert charged(mesh) == 2 * price(7)


async def test_without_a_price_nothing_is_told_whatever_a_replica_says() -> None:
    mesh = Mesh()
    edge = mesh.edge()
    frame = done(await run(mesh, edge, 7))
    set_cost(frame.done.usage, Cost(1, "USD"))
    mesh.reply("near", frame)
    (told,) = await mesh.at_edge(edge)
    assert not told.done.usage.HasField("cost")
    mesh.metrics.close()


async def test_who_cancels_pays_for_what_was_computed(mesh: Mesh) -> None:
    edge = mesh.edge()
    number = await run(mesh, edge, 3)
    mesh.send(edge, cancel())
    mesh.reply("near", commit(number, 5))  # it was under way
    await mesh.at_edge(edge)
    assert await ended(mesh, edge, number) == Cost(price(5), "USD")
    assert charged(mesh) == price(5)


async def test_a_run_taken_up_elsewhere_is_part_of_the_one_that_ends(mesh: Mesh) -> None:
    old, new = mesh.edge(), mesh.edge()
    await run(mesh, old, 9, request_id="chat")
    number = await run(mesh, new, 12, request_id="chat", resume=tokens(4))
    assert charged(mesh) == price(9), "the one before was ended"
    assert await ended(mesh, new, number) == Cost(price(12), "USD")
    assert charged(mesh) == price(12) - price(9)


async def test_a_run_that_went_with_its_edge_is_part_of_the_one_that_ends(mesh: Mesh) -> None:
    old = mesh.edge()
    await run(mesh, old, 9, request_id="chat")
    mesh.switch.detach_edge(old, mesh.clock())
    assert charged(mesh) == price(9)
    new = mesh.edge()
    number = await run(mesh, new, 12, request_id="chat", resume=tokens(4))
    assert await ended(mesh, new, number) == Cost(price(12), "USD")
    assert charged(mesh) == price(12) - price(9)


async def test_another_request_under_the_same_id_is_charged_in_full(mesh: Mesh) -> None:
    edge = mesh.edge()
    await ended(mesh, edge, await run(mesh, edge, 9, request_id="chat"))
    charged(mesh)
    prompt = inference_pb2.PromptDelta(tail=common_pb2.TokenBlock(count=PROMPT, checksum=1))
    for others in ({"sampling": common_pb2.Sampling(seed=1)}, {"ids": prompt}, {"tenant": "x"}):
        number = await run(mesh, edge, 9, request_id="chat", resume=tokens(1), **others)
        assert await ended(mesh, edge, number) == Cost(price(9), "USD")
        assert charged(mesh) == price(9)


async def test_what_a_replica_refuses_costs_nothing(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening())
    (sent,) = await mesh.at_replica("near")
    mesh.reply("near", failed(sent.session, InvalidRequestError("no")))
    assert [frame.WhichOneof("kind") for frame in await mesh.at_edge(edge)] == ["error"]
    assert charged(mesh) == 0
