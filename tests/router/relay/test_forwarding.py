"""Frames through the switch, from the open to the last one."""

from __future__ import annotations

from outrider.v1 import common_pb2
from tests.router.relay.mesh import (
    DIGEST,
    Mesh,
    accepted,
    commit,
    done,
    draft,
    opening,
    reasons,
    start,
    texting,
)


async def test_a_whole_session(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening(3))
    mesh.send(edge, draft(3))
    opened, drafted = await mesh.at_replica("near")
    assert (opened.WhichOneof("kind"), drafted.WhichOneof("kind")) == ("open", "draft")
    assert opened.session == drafted.session
    assert mesh.registry["near"].sessions == {opened.session}
    mesh.reply("near", accepted(opened.session))
    mesh.reply("near", commit(opened.session))
    mesh.reply("near", done(opened.session))
    kinds = [frame.WhichOneof("kind") for frame in await mesh.at_edge(edge)]
    assert kinds == ["opened", "commit", "done"]
    assert len(mesh.table) == 0
    assert mesh.registry["near"].sessions == set()
    mesh.reply("near", commit(opened.session))
    mesh.send(edge, draft(3))
    assert await mesh.at_edge(edge) == await mesh.at_replica("near") == []


async def test_the_default_model_is_filled_in(mesh: Mesh) -> None:
    mesh.send(mesh.edge(), opening(model=""))
    assert [frame.open.model for frame in await mesh.at_replica("near")] == ["m"]


async def test_a_frame_of_another_replicas_session_is_dropped(mesh: Mesh) -> None:
    edge = mesh.edge()
    number = await start(mesh, edge)
    mesh.reply("far", done(number))
    assert await mesh.at_edge(edge) == []
    assert len(mesh.table) == 1


async def test_the_deadline_shrinks_by_the_time_spent_here(mesh: Mesh) -> None:
    edge = mesh.edge()
    frame = texting()
    frame.open.deadline_ms = 1000
    mesh.send(edge, frame)
    mesh.clock.advance(0.4)
    mesh.switch.tokenized(mesh.texts[0], common_pb2.TokenBlock(count=4), DIGEST, mesh.clock())
    (sent,) = await mesh.at_replica("near")
    assert sent.open.deadline_ms == 600


async def test_a_deadline_that_passed_here_is_said_so(mesh: Mesh) -> None:
    edge = mesh.edge()
    frame = texting()
    frame.open.deadline_ms = 100
    mesh.send(edge, frame)
    mesh.clock.advance(0.2)
    mesh.switch.tokenized(mesh.texts[0], common_pb2.TokenBlock(count=4), DIGEST, mesh.clock())
    assert reasons(await mesh.at_edge(edge)) == [(1, "DEADLINE")]


async def test_counters_of_frames_and_placements(mesh: Mesh) -> None:
    edge = mesh.edge()
    number = await start(mesh, edge)
    mesh.send(edge, draft())
    mesh.reply("near", done(number))
    mesh.telemetry.flush(len(mesh.table), mesh.registry.count())
    registry = mesh.metrics.registry
    frames = "outrider_router_frames_total"
    assert registry.get_sample_value(frames, {"direction": "up"}) == 1.0
    assert registry.get_sample_value(frames, {"direction": "down"}) == 3.0
    labels = {"replica": "near", "region": "us"}
    assert registry.get_sample_value("outrider_router_placements_total", labels) == 1.0
    assert registry.get_sample_value("outrider_router_replicas", {"state": "ready"}) == 2.0
    assert registry.get_sample_value("outrider_router_sessions") == 0.0


async def test_sessions_of_two_edges_keep_their_numbers_apart(mesh: Mesh) -> None:
    one, two = mesh.edge(), mesh.edge()
    mesh.send(one, opening(5))
    mesh.send(two, opening(5))
    first, second = await mesh.at_replica("near")
    assert first.session != second.session
    assert first.open.ids.tail.payload == b"p"
    mesh.reply("near", commit(second.session, upto=9))
    mesh.reply("near", commit(first.session, upto=3))
    assert [(f.session, f.commit.upto) for f in await mesh.at_edge(one)] == [(5, 3)]
    assert [(f.session, f.commit.upto) for f in await mesh.at_edge(two)] == [(5, 9)]
