"""Sessions that their edge cancels, or leaves."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import DuplicateSessionError
from outrider.session.runs import later_run
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import error_from_proto
from tests.router.relay.mesh import (
    IDENTITY,
    Mesh,
    cancel,
    commit,
    done,
    draft,
    opening,
    reasons,
    start,
    texting,
)


async def test_a_cancel_reaches_the_replica_and_its_answer_the_edge(mesh: Mesh) -> None:
    edge = mesh.edge()
    number = await start(mesh, edge)
    mesh.send(edge, cancel())
    mesh.send(edge, cancel())
    mesh.send(edge, draft())
    (sent,) = await mesh.at_replica("near")
    assert (sent.session, sent.WhichOneof("kind")) == (number, "cancel")
    mesh.reply("near", done(number))
    assert [f.WhichOneof("kind") for f in await mesh.at_edge(edge)] == ["done"]


async def test_a_cancel_that_the_replica_never_confirms_ends_in_time(mesh: Mesh) -> None:
    edge = mesh.edge()
    await start(mesh, edge)
    mesh.send(edge, cancel())
    mesh.switch.expire(mesh.clock.advance(4.9))
    assert len(mesh.table) == 1
    mesh.switch.expire(mesh.clock.advance(0.1))
    assert reasons(await mesh.at_edge(edge)) == [(1, "CANCELLED")]
    assert mesh.registry["near"].sessions == set()


async def test_a_replica_lost_while_cancelling_is_a_cancellation(mesh: Mesh) -> None:
    edge = mesh.edge()
    await start(mesh, edge)
    mesh.send(edge, cancel())
    mesh.lose("near")
    assert reasons(await mesh.at_edge(edge)) == [(1, "CANCELLED")]


async def test_an_edge_that_leaves_cancels_its_sessions_and_no_others(mesh: Mesh) -> None:
    leaving, staying = mesh.edge(), mesh.edge()
    number = await start(mesh, leaving)
    await start(mesh, staying)
    mesh.send(leaving, texting(2))
    mesh.switch.detach_edge(leaving, mesh.clock())
    sent = await mesh.at_replica("near")
    assert [(f.session, f.WhichOneof("kind")) for f in sent] == [(number, "cancel")]
    assert sent[0].cancel.reason == "CANCELLED"
    assert len(mesh.table) == 1
    mesh.reply("near", commit(number))
    assert await mesh.at_edge(staying) == []


def resumed(
    number: int, request_id: str, tenant: str = "", **options: Any
) -> inference_pb2.SessionUp:
    """An open behind two tokens."""
    frame = opening(number, request_id=request_id, tenant=tenant, **options)
    frame.open.resume.CopyFrom(common_pb2.TokenBlock(count=2, payload=b"r"))
    frame.open.model_identity = IDENTITY
    return frame


async def test_a_chat_that_goes_on_at_another_edge_ends_where_it_was(mesh: Mesh) -> None:
    first, second = mesh.edge(), mesh.edge()
    mesh.send(first, opening(1, request_id="chat", tenant="acme"))
    (sent,) = await mesh.at_replica("near")
    mesh.reply("near", commit(sent.session, upto=2))
    await mesh.at_edge(first)
    mesh.send(second, resumed(7, "chat", "acme"))
    frames = await mesh.at_replica("near")
    assert [frame.WhichOneof("kind") for frame in frames] == ["cancel", "open"]
    assert frames[0].session == sent.session
    assert reasons(await mesh.at_edge(first)) == [(1, "DUPLICATE_SESSION")]
    mesh.reply("near", done(frames[1].session))
    assert [f.WhichOneof("kind") for f in await mesh.at_edge(second)] == ["done"]
    assert len(mesh.table) == len(mesh.intake.runs) == 0


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(resumed(7, "chat", "other"), id="another tenant's"),
        pytest.param(resumed(7, "", "acme"), id="nameless"),
        pytest.param(resumed(7, "another", "acme"), id="another"),
        pytest.param(resumed(7, "chat", "acme", tokens=11), id="another prompt's"),
        pytest.param(
            resumed(7, "chat", "acme", sampling=common_pb2.Sampling(seed=1)), id="another seed's"
        ),
        pytest.param(opening(7, request_id="chat", tenant="acme"), id="a copy from the start"),
    ],
)
async def test_no_other_open_ends_a_chat(mesh: Mesh, frame: inference_pb2.SessionUp) -> None:
    first, second = mesh.edge(), mesh.edge()
    mesh.send(first, opening(1, request_id="chat", tenant="acme"))
    mesh.send(second, frame)
    assert len(mesh.table) == 2
    assert await mesh.at_edge(first) == []


LATEST, UNKNOWN = 3, 0


@pytest.mark.parametrize("has_tokens", [False, True], ids=["from the start", "resumed"])
@pytest.mark.parametrize("run", [UNKNOWN, 1, 2, LATEST])
@pytest.mark.parametrize("running", [None, UNKNOWN, 1, 2, LATEST])
async def test_every_pair_of_runs_of_a_chat(
    mesh: Mesh, running: int | None, run: int, has_tokens: bool
) -> None:
    """An edge that was cut off opens its run again, and its client reads a later one elsewhere."""
    first, second = mesh.edge(), mesh.edge()
    if running is not None:
        mesh.send(first, resumed(1, "chat", "acme", run=running))
    before = await mesh.at_replica("near")
    frame = (resumed if has_tokens else opening)(7, request_id="chat", tenant="acme", run=run)
    mesh.send(second, frame)
    sent = [it.WhichOneof("kind") for it in await mesh.at_replica("near")]
    ended = reasons(await mesh.at_edge(first)), reasons(await mesh.at_edge(second))
    if running and UNKNOWN < run < running:
        assert (sent, ended) == ([], ([], [(7, "DUPLICATE_SESSION")]))
    elif running is not None and has_tokens:
        assert (sent, ended) == (["cancel", "open"], ([(1, "DUPLICATE_SESSION")], []))
    else:
        assert (sent, ended) == (["open"], ([], []))
    for edge in (first, second):
        mesh.switch.detach_edge(edge, mesh.clock())
    for it in before:
        mesh.reply("near", done(it.session))
    mesh.clock.advance(3600.0)
    mesh.switch.expire(mesh.clock())
    assert len(mesh.table) == len(mesh.intake.runs) == 0


async def test_an_earlier_run_is_free_again_once_the_later_one_has_ended(mesh: Mesh) -> None:
    first, second = mesh.edge(), mesh.edge()
    mesh.send(first, resumed(1, "chat", "acme", run=2))
    (sent,) = await mesh.at_replica("near")
    mesh.send(second, resumed(7, "chat", "acme", run=1))
    (refused,) = await mesh.at_edge(second)
    error = error_from_proto(refused.error)
    assert isinstance(error, DuplicateSessionError) and later_run(error) == 2
    mesh.send(second, resumed(8, "chat", "other", run=1))
    assert await mesh.at_edge(second) == [], "another tenant's chat is another one"
    mesh.reply("near", done(sent.session))
    mesh.send(second, resumed(9, "chat", "acme", run=1))
    assert await mesh.at_edge(second) == []
    assert len(mesh.table) == len(mesh.intake.runs) == 2


async def test_a_half_closed_edge_gets_the_rest_and_then_the_end(mesh: Mesh) -> None:
    edge = mesh.edge()
    number = await start(mesh, edge)
    mesh.switch.half_close_edge(edge)
    mesh.reply("near", done(number))
    outbox = mesh.down[edge]
    assert await anext(outbox)
    assert [response async for response in outbox] == []
    idle = mesh.edge()
    mesh.switch.half_close_edge(idle)
    assert [response async for response in mesh.down[idle]] == []
