"""Frames through the switch, with scripted edges and replicas, virtual time and no network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outrider.errors import (
    InvalidSamplingError,
    MalformedFrameError,
    OutriderError,
    OverloadedError,
    UnavailableError,
)
from outrider.v1 import common_pb2, inference_pb2
from services.router.registry import Load, Signal
from tests.router.relay.mesh import (
    DIGEST,
    Mesh,
    accepted,
    cancel,
    commit,
    done,
    draft,
    failed,
    opening,
    texting,
)


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    mesh = Mesh()
    yield mesh
    mesh.table.check_invariants()
    for replica in mesh.registry:
        assert len(replica.sessions) <= len(mesh.table)
    mesh.metrics.close()


def reasons(frames: list[inference_pb2.SessionDown]) -> list[tuple[int, str]]:
    return [(frame.session, frame.error.reason) for frame in frames]


async def start(mesh: Mesh, edge: int, number: int = 1) -> int:
    """A session that has committed; what the near replica calls it."""
    mesh.send(edge, opening(number))
    (sent,) = await mesh.at_replica("near")
    mesh.reply("near", accepted(sent.session))
    mesh.reply("near", commit(sent.session))
    await mesh.at_edge(edge)
    return sent.session


# --- forwarding ---


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


# --- messages ---


async def test_messages_become_ids_before_placement(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, texting())
    assert await mesh.at_replica("near") == []
    block = common_pb2.TokenBlock(count=4, payload=b"\x01\x02\x03\x04")
    mesh.switch.tokenized(mesh.texts[0], block, DIGEST, mesh.clock())
    (sent,) = await mesh.at_replica("near")
    assert sent.open.WhichOneof("prompt") == "ids"
    assert sent.open.ids.tail == block
    assert sent.open.vocabulary_digest == DIGEST


async def test_messages_that_cannot_become_ids_end_their_session_alone(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, texting(1))
    mesh.send(edge, texting(2))
    mesh.switch.fail(mesh.texts[0], UnavailableError("no tokenizer"), mesh.clock())
    assert reasons(await mesh.at_edge(edge)) == [(1, "UNAVAILABLE")]
    assert len(mesh.table) == 1


async def test_ids_that_come_after_the_session_ended_are_ignored(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, texting())
    mesh.send(edge, cancel())
    assert reasons(await mesh.at_edge(edge)) == [(1, "CANCELLED")]
    mesh.switch.tokenized(mesh.texts[0], common_pb2.TokenBlock(count=4), DIGEST, mesh.clock())
    mesh.switch.fail(mesh.texts[0], UnavailableError("late"), mesh.clock())
    assert await mesh.at_edge(edge) == await mesh.at_replica("near") == []


async def test_drafts_before_the_placement_follow_the_open(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, texting())
    for base in range(6):
        mesh.send(edge, draft(base=base))
    mesh.switch.tokenized(mesh.texts[0], common_pb2.TokenBlock(count=4), DIGEST, mesh.clock())
    sent = await mesh.at_replica("near")
    assert [frame.draft.base for frame in sent[1:]] == [0, 1, 2, 3], "four are kept at most"


@pytest.mark.parametrize(
    "frame",
    [
        opening(tokens=0),
        inference_pb2.SessionUp(session=1, open=inference_pb2.OpenSession()),
        inference_pb2.SessionUp(
            session=1, open=inference_pb2.OpenSession(messages=inference_pb2.PromptMessages())
        ),
    ],
    ids=["no ids", "no prompt", "no messages"],
)
async def test_an_empty_prompt_is_refused(mesh: Mesh, frame: inference_pb2.SessionUp) -> None:
    edge = mesh.edge()
    mesh.send(edge, inference_pb2.SessionUp.FromString(frame.SerializeToString()))
    assert reasons(await mesh.at_edge(edge)) == [(1, "EMPTY_PROMPT")]
    assert mesh.texts == []


# --- refusals and losses ---


async def test_no_replica_is_a_clear_error(mesh: Mesh) -> None:
    mesh.lose("near")
    mesh.lose("far")
    edge = mesh.edge()
    mesh.send(edge, opening())
    (frame,) = await mesh.at_edge(edge)
    assert frame.error.reason == "NO_REPLICA"
    assert "near DOWN, far DOWN" in frame.error.message
    assert len(mesh.table) == 0


async def test_unknown_model_and_vocabulary_are_told_apart(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening(1, model="x"))
    mesh.send(edge, opening(2, vocabulary_digest=b"\x02" * 32))
    assert reasons(await mesh.at_edge(edge)) == [(1, "UNKNOWN_MODEL"), (2, "VOCABULARY_MISMATCH")]


@pytest.mark.parametrize("error", [OverloadedError("full"), UnavailableError("stopping")])
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
    assert [frame.WhichOneof("kind") for frame in again] == ["open", "draft"]
    assert again[1].draft.base == 7
    assert await mesh.at_edge(edge) == []
    assert mesh.registry["near"].sessions == set()
    mesh.reply("near", commit(sent))
    mesh.reply("far", accepted(sent))
    mesh.reply("far", commit(again[0].session, upto=4))
    kinds = [frame.WhichOneof("kind") for frame in await mesh.at_edge(edge)]
    assert kinds == (["commit"] if is_opened else ["opened", "commit"]), "opened is said once"


async def test_a_second_refusal_is_the_edges(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening())
    sent = (await mesh.at_replica("near"))[0].session
    mesh.reply("near", failed(sent, OverloadedError("near is full")))
    mesh.reply("far", failed(sent, OverloadedError("far is full", retry_delay_ms=70)))
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


async def test_a_replica_lost_after_a_commit_is_a_clear_error(mesh: Mesh) -> None:
    edge = mesh.edge()
    await start(mesh, edge)
    mesh.lose("near")
    (frame,) = await mesh.at_edge(edge)
    assert frame.error.reason == "REPLICA_LOST"
    assert "near" in frame.error.message
    assert await mesh.at_replica("far") == []


async def test_a_session_whose_second_replica_dies_fails(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, opening())
    mesh.lose("near")
    mesh.connect("near")
    mesh.lose("far")
    assert reasons(await mesh.at_edge(edge)) == [(1, "REPLICA_LOST")]


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


# --- cancelling ---


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


async def test_a_half_closed_edge_gets_the_rest_and_then_the_end(mesh: Mesh) -> None:
    edge = mesh.edge()
    number = await start(mesh, edge)
    mesh.switch.half_close_edge(edge)
    mesh.reply("near", done(number))
    outlet = mesh.down[edge]
    assert (await outlet.take()) is not None
    assert (await outlet.take()) is None
    idle = mesh.edge()
    mesh.switch.half_close_edge(idle)
    assert (await mesh.down[idle].take()) is None


# --- what edges do wrong ---


def test_a_frame_without_a_session_number_ends_the_stream(mesh: Mesh) -> None:
    with pytest.raises(MalformedFrameError, match="from 1"):
        mesh.send(mesh.edge(), draft(0))


async def test_a_frame_without_a_kind_ends_its_session(mesh: Mesh) -> None:
    edge = mesh.edge()
    number = await start(mesh, edge)
    mesh.send(edge, inference_pb2.SessionUp(session=1))
    mesh.send(edge, inference_pb2.SessionUp(session=99))
    assert reasons(await mesh.at_edge(edge)) == [(1, "MALFORMED_FRAME")]
    assert [f.session for f in await mesh.at_replica("near")] == [number]


async def test_a_number_used_twice_ends_the_session_it_names(mesh: Mesh) -> None:
    edge = mesh.edge()
    number = await start(mesh, edge)
    mesh.send(edge, opening())
    assert reasons(await mesh.at_edge(edge)) == [(1, "DUPLICATE_SESSION")]
    (sent,) = await mesh.at_replica("near")
    assert (sent.session, sent.cancel.reason) == (number, "DUPLICATE_SESSION")
    assert len(mesh.table) == 0


async def test_too_many_sessions_on_one_stream_are_overload(mesh: Mesh) -> None:
    edge = mesh.edge()
    for number in range(1, 18):
        mesh.send(edge, opening(number))
    assert reasons(await mesh.at_edge(edge)) == [(17, "OVERLOADED")]
    assert len(mesh.table) == 16


async def test_a_stopping_router_takes_no_new_sessions(mesh: Mesh) -> None:
    edge = mesh.edge()
    number = await start(mesh, edge)
    mesh.switch.drain()
    mesh.send(edge, opening(2))
    assert reasons(await mesh.at_edge(edge)) == [(2, "UNAVAILABLE")]
    mesh.reply("near", commit(number))
    assert [f.session for f in await mesh.at_edge(edge)] == [1]


# --- back-pressure ---


async def test_an_edge_that_does_not_read_loses_its_sessions_and_nobody_elses() -> None:
    mesh = Mesh(edge_capacity=8)
    slow, other = mesh.edge(), mesh.edge()
    numbers = [await start(mesh, slow, n) for n in (1, 2)]
    theirs = await start(mesh, other)
    for upto in range(5):
        for number in numbers:
            mesh.reply("near", commit(number, upto))
        mesh.reply("near", commit(theirs, upto))
        assert len(await mesh.at_edge(other)) == 1
    cancelled = await mesh.at_replica("near")
    assert [(f.session, f.cancel.reason) for f in cancelled] == [(n, "OVERLOADED") for n in numbers]
    assert len(mesh.table) == 1
    left = await mesh.at_edge(slow)
    assert len(left) == 10
    assert reasons(left)[8:] == [(1, "OVERLOADED"), (2, "OVERLOADED")]
    mesh.metrics.close()


async def test_an_edge_that_opens_and_never_reads_is_given_up() -> None:
    mesh = Mesh(edge_capacity=4)
    mesh.lose("near")
    mesh.lose("far")
    edge = mesh.edge()
    for number in range(1, 40):
        mesh.send(edge, opening(number))
    assert mesh.down[edge].is_broken
    mesh.switch.detach_edge(edge, mesh.clock())
    assert len(mesh.table) == 0
    mesh.metrics.close()


async def test_a_replica_that_does_not_read_loses_drafts_then_opens_go_elsewhere() -> None:
    mesh = Mesh(replica_capacity=3)
    edge = mesh.edge()
    mesh.send(edge, opening())
    for base in range(5):
        mesh.send(edge, draft(base=base))
    assert mesh.journal.drafts_dropped == 3
    mesh.send(edge, opening(2))
    assert [f.WhichOneof("kind") for f in await mesh.at_replica("far")] == ["open"]
    mesh.send(edge, cancel())
    sent = await mesh.at_replica("near")
    assert [f.WhichOneof("kind") for f in sent] == ["open", "draft", "draft", "cancel"]
    mesh.metrics.close()


async def test_when_no_replica_reads_opens_are_overload() -> None:
    mesh = Mesh(replica_capacity=1)
    edge = mesh.edge()
    for number in (1, 2, 3):
        mesh.send(edge, opening(number))
    (frame,) = await mesh.at_edge(edge)
    assert (frame.session, frame.error.reason) == (3, "OVERLOADED")
    assert "buffer" in frame.error.message
    mesh.metrics.close()


# --- placement through the switch ---


async def test_reports_and_health_steer_new_sessions(mesh: Mesh) -> None:
    edge = mesh.edge()
    busy = Load(running_sessions=4, queued_prompt_tokens=900, fixed_ms=10.0, row_ms=1.0)
    mesh.registry.report("near", busy, mesh.clock())
    mesh.send(edge, opening(1))
    assert len(await mesh.at_replica("far")) == 1
    mesh.registry.report("near", Load(fixed_ms=10.0, row_ms=1.0), mesh.clock())
    mesh.send(edge, opening(2))
    assert len(await mesh.at_replica("near")) == 1
    mesh.registry.signal("near", Signal.NOT_SERVING, mesh.clock())
    mesh.send(edge, opening(3, residency=["us"]))
    mesh.send(edge, opening(4))
    assert len(await mesh.at_replica("far")) == 1
    (frame,) = await mesh.at_edge(edge)
    assert (frame.session, frame.error.reason) == (3, "NO_REPLICA")
    assert "near DRAINING" in frame.error.message


async def test_counters_of_frames_and_placements(mesh: Mesh) -> None:
    edge = mesh.edge()
    number = await start(mesh, edge)
    mesh.send(edge, draft())
    mesh.reply("near", done(number))
    mesh.journal.flush(len(mesh.table), mesh.registry.count())
    registry = mesh.metrics.registry
    frames = "outrider_router_frames_total"
    assert registry.get_sample_value(frames, {"direction": "up"}) == 1.0
    assert registry.get_sample_value(frames, {"direction": "down"}) == 3.0
    labels = {"replica": "near", "region": "us"}
    assert registry.get_sample_value("outrider_router_placements_total", labels) == 1.0
    assert registry.get_sample_value("outrider_router_replicas_ready") == 2.0
    assert registry.get_sample_value("outrider_router_sessions") == 0.0
