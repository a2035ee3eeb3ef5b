"""Replicas that refuse, and replicas that are lost."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from outrider.engine_calls import CRASH_KEPT_S
from outrider.errors import (
    InvalidSamplingError,
    OutriderError,
    OverloadedError,
    ReplicaLostError,
    UnavailableError,
    VocabularyMismatchError,
)
from outrider.v1 import common_pb2, inference_pb2
from services.router.admission.tenants import TenantPolicy
from services.router.fleet.replica import ReplicaLoad
from tests.router.relay.mesh import (
    DIGEST,
    Mesh,
    accepted,
    commit,
    done,
    draft,
    failed,
    opening,
    reasons,
    start,
    texting,
)


@pytest.mark.parametrize(
    "error",
    [OverloadedError("full"), UnavailableError("stopping"), VocabularyMismatchError("replaced")],
)
@pytest.mark.parametrize("is_opened", [False, True])
async def test_a_refused_session_is_placed_once_more(
    mesh: Mesh, error: OutriderError, is_opened: bool
) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening())
    mesh.send(edge, draft(base=7))
    sent = (await mesh.at_replica("near"))[0].session
    if is_opened:
        mesh.reply("near", accepted(sent))
        await mesh.at_edge(edge)
    mesh.reply("near", failed(sent, error))
    again = await mesh.at_replica("far")
    drafts = [frame.draft.base for frame in again[1:]]
    assert drafts == ([] if is_opened else [7]), "an edge that was told of one replica starts anew"
    assert await mesh.at_edge(edge) == []
    assert mesh.registry["near"].sessions == set()
    mesh.reply("near", commit(sent))
    mesh.reply("far", accepted(again[0].session))
    mesh.reply("far", commit(again[0].session, upto=4))
    kinds = [frame.WhichOneof("kind") for frame in await mesh.at_edge(edge)]
    first = "moved" if is_opened else "opened"
    assert kinds == [first, "commit"], "opened is said once"


async def test_a_second_refusal_is_the_edges(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening())
    sent = (await mesh.at_replica("near"))[0].session
    mesh.reply("near", failed(sent, OverloadedError("near is full")))
    again = (await mesh.at_replica("far"))[0].session
    mesh.reply("far", failed(again, OverloadedError("far is full", retry_delay_ms=70)))
    (frame,) = await mesh.at_edge(edge)
    assert (frame.session, frame.error.message) == (1, "far is full")
    assert frame.error.retry_delay_ms == 70


async def test_without_another_replica_the_refusal_is_the_edges(mesh: Mesh) -> None:
    mesh.lose("far")
    edge = mesh.edge()
    mesh.send(edge, opening())
    sent = (await mesh.at_replica("near"))[0].session
    mesh.reply("near", failed(sent, OverloadedError("near is full")))
    (frame,) = await mesh.at_edge(edge)
    assert frame.error.message == "near is full"


async def test_a_session_whose_replicas_lose_their_engines_is_tried_as_long_as_it_takes(
    mesh: Mesh,
) -> None:
    """It has no token yet, and no replica took it alone: nothing speaks against it."""
    edge = mesh.edge()
    mesh.send(edge, opening())
    for name in ("near", "far"):
        (sent,) = await mesh.at_replica(name)
        mesh.reply(name, failed(sent.session, ReplicaLostError("the engine is gone")))
        mesh.lose(name)
    assert await mesh.at_edge(edge) == [], "it waits"
    mesh.connect("near")
    mesh.switch.expire(mesh.clock())
    (again,) = await mesh.at_replica("near")
    assert not again.open.alone
    mesh.reply("near", done(again.session))
    assert [f.WhichOneof("kind") for f in await mesh.at_edge(edge)] == ["done"]


async def test_an_error_of_the_request_is_not_tried_elsewhere(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening())
    sent = (await mesh.at_replica("near"))[0].session
    mesh.reply("near", failed(sent, InvalidSamplingError("absurd")))
    assert reasons(await mesh.at_edge(edge)) == [(1, "INVALID_SAMPLING")]
    assert await mesh.at_replica("far") == []


async def test_a_replica_lost_before_the_first_commit_is_replaced(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening())
    mesh.lose("near")
    (again,) = await mesh.at_replica("far")
    mesh.reply("far", done(again.session))
    assert [f.WhichOneof("kind") for f in await mesh.at_edge(edge)] == ["done"]


async def test_drafts_behind_what_was_lost_with_a_replica_are_not_sent_to_the_next(
    mesh: Mesh,
) -> None:
    """They were under way when the edge was told of the move, and guess on from what the next
    replica was never sent."""
    edge = mesh.edge()
    mesh.send(edge, opening())
    mesh.send(edge, draft(base=0))
    (sent, _) = await mesh.at_replica("near")
    mesh.reply("near", accepted(sent.session))
    mesh.lose("near")
    (again,) = await mesh.at_replica("far")
    mesh.reply("far", accepted(again.session))
    moved = (await mesh.at_edge(edge))[-1].moved
    assert moved.epoch == 1, "the edge knows which of its drafts are void"
    mesh.send(edge, draft(base=3))
    assert await mesh.at_replica("far") == []
    mesh.send(edge, draft(base=0, epoch=2))
    assert [frame.draft.epoch for frame in await mesh.at_replica("far")] == [2]


async def test_after_a_loss_a_session_goes_alone_and_measures_no_round_trip(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening(echo=7, alone=True))
    (first,) = await mesh.at_replica("near")
    assert (first.open.alone, first.open.echo) == (False, 7), "edges do not decide it"
    mesh.lose("near")
    (again,) = await mesh.at_replica("far")
    assert again.open.alone
    assert again.open.echo == 0, "it would time the wait for a replica, too"


@pytest.mark.parametrize(
    ("fields", "goes_alone"),
    [
        ({}, True),
        ({"residency": ["us", "eu"]}, True),
        ({"residency": ["us"]}, False),
        ({"tenant": "bold"}, True),
        ({"resume": None}, False),
        ({"proven": True}, False),
    ],
)
async def test_a_resumed_reply_goes_alone_while_a_replica_that_could_have_had_it_is_away(
    fields: dict[str, Any], goes_alone: bool
) -> None:
    """It may have crashed it, which is not reported yet. Crashes count for ten minutes."""
    mesh = Mesh(tenants=(TenantPolicy("bold", allow_inexact=True),))
    edge, numbers = mesh.edge(), count(1)

    async def is_alone() -> bool:
        resume = common_pb2.TokenBlock(count=3, payload=b"r")
        mesh.send(edge, opening(next(numbers), **{"resume": resume} | fields))
        (sent,) = await mesh.at_replica("near")
        return sent.open.alone

    assert not await is_alone()
    mesh.lose("far")
    assert await is_alone() is goes_alone
    mesh.clock.advance(CRASH_KEPT_S - 0.1)
    assert await is_alone() is goes_alone
    mesh.clock.advance(0.1)
    assert not await is_alone()
    mesh.connect("far", identity=b"\x0b" * 32)
    assert not await is_alone()
    mesh.lose("far")
    is_bold = fields.get("tenant") == "bold"
    assert await is_alone() is is_bold, "the tokens are not of what it computed"
    mesh.metrics.close()


async def test_frames_of_a_former_stream_reach_nobody(mesh: Mesh) -> None:
    edge = mesh.edge()
    number = await start(mesh, edge)
    former = mesh.streams["near"]
    mesh.lose("near")
    mesh.connect("near")
    await mesh.at_edge(edge)
    response = inference_pb2.SessionDown(session=number)
    mesh.streams["near"], current = former, mesh.streams["near"]
    mesh.reply("near", response)
    mesh.streams["near"] = current
    assert await mesh.at_edge(edge) == []


async def test_the_sessions_of_a_stream_leave_it_whoever_has_its_name_by_then(mesh: Mesh) -> None:
    edge = mesh.edge()
    await start(mesh, edge)
    former = mesh.streams["near"]
    mesh.connect("near")
    mesh.switch.detach_replica("at its address", former, mesh.clock())
    assert reasons(await mesh.at_edge(edge)) == [(1, "REPLICA_LOST")]
    mesh.send(edge, opening(2))
    assert len(await mesh.at_replica("near")) == 1, "the name is its new stream's"


async def test_what_waits_for_a_replica_keeps_the_number_that_its_cancel_names(mesh: Mesh) -> None:
    """A stopped replica reads it when it goes on, and must not compute what has moved."""
    edge = mesh.edge()
    mesh.send(edge, texting())
    mesh.send(edge, draft())
    block = common_pb2.TokenBlock(count=4, payload=b"\x01\x02\x03\x04")
    mesh.switch.tokenized(mesh.texts[0], block, DIGEST, mesh.clock())
    now = mesh.clock.advance(4.0)
    mesh.registry.report("far", ReplicaLoad(), now)
    mesh.registry.expire(now)
    mesh.switch.expire(now)
    near, far = await mesh.at_replica("near"), await mesh.at_replica("far")
    assert [frame.WhichOneof("kind") for frame in near] == ["open", "draft", "cancel"]
    assert [frame.WhichOneof("kind") for frame in far] == ["open", "draft"]
    (before,), (after,) = ({frame.session for frame in frames} for frames in (near, far))
    assert before != after
