"""Sessions that bring messages, which become ids before they are placed."""

from __future__ import annotations

import pytest

from outrider.errors import UnavailableError
from outrider.v1 import common_pb2, inference_pb2
from tests.router.relay.mesh import DIGEST, LIMITS, Mesh, cancel, draft, opening, reasons, texting


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


async def test_what_is_kept_of_messages_is_their_ids(mesh: Mesh) -> None:
    edge = mesh.edge()
    frame = texting()
    frame.open.messages.messages[0].content = "hello " * 1000
    mesh.send(edge, frame)
    block = common_pb2.TokenBlock(count=4, payload=b"\x01\x02\x03\x04")
    mesh.switch.tokenized(mesh.texts[0], block, DIGEST, mesh.clock())
    replay = mesh.texts[0].replay
    assert replay is not None and 32 < replay.num_bytes < 200


async def test_ids_for_which_there_is_no_room_end_their_session(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, texting())
    block = common_pb2.TokenBlock(count=4, payload=bytes(LIMITS["max_kept_bytes"]))
    mesh.switch.tokenized(mesh.texts[0], block, DIGEST, mesh.clock())
    assert reasons(await mesh.at_edge(edge)) == [(1, "OVERLOADED")]
    assert await mesh.at_replica("near") == []


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
    assert mesh.given_up == mesh.texts, "nothing is tokenized for who is gone"
    mesh.switch.tokenized(mesh.texts[0], common_pb2.TokenBlock(count=4), DIGEST, mesh.clock())
    mesh.switch.fail(mesh.texts[0], UnavailableError("late"), mesh.clock())
    assert await mesh.at_edge(edge) == await mesh.at_replica("near") == []


async def test_a_session_does_not_wait_for_its_ids_for_ever(mesh: Mesh) -> None:
    edge = mesh.edge()
    mesh.send(edge, texting(1))
    mesh.send(edge, texting(2))
    in_a_hurry = texting(3)
    in_a_hurry.open.deadline_ms = 5000
    mesh.send(edge, in_a_hurry)
    block = common_pb2.TokenBlock(count=4, payload=b"\x01\x02\x03\x04")
    mesh.switch.tokenized(mesh.texts[1], block, DIGEST, mesh.clock())
    mesh.switch.expire(mesh.clock.advance(4.9))
    assert await mesh.at_edge(edge) == []
    mesh.switch.expire(mesh.clock.advance(0.1))
    assert reasons(await mesh.at_edge(edge)) == [(3, "DEADLINE")]
    mesh.switch.expire(mesh.clock.advance(25.0))
    assert reasons(await mesh.at_edge(edge)) == [(1, "UNAVAILABLE")]
    assert len(mesh.table) == 1, "the one that has its ids goes on"
    assert mesh.given_up == [mesh.texts[2], mesh.texts[0]]


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
