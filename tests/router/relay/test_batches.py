"""One message, frames of many sessions: each is relayed, refused or dropped by itself."""

from __future__ import annotations

import pytest

from outrider.errors import MalformedFrameError
from outrider.v1 import inference_pb2, router_pb2
from services.router.relay.sessions import SessionState
from tests.router.relay.mesh import Mesh, accepted, cancel, commit, done, draft, opening
from tests.router.relay.scripted import block


async def opened(mesh: Mesh, edge: int, *numbers: int) -> list[int]:
    """The sessions' numbers at the replica."""
    frames = [opening(number, request_id=f"{edge}-{number}") for number in numbers]
    mesh.switch.from_edge(edge, frames, mesh.clock())
    return [frame.session for frame in await mesh.at_replica("near")]


async def test_frames_of_one_call_reach_the_edges_they_are_for() -> None:
    mesh = Mesh()
    one, other = mesh.edge(), mesh.edge()
    first, second, third = *await opened(mesh, one, 1, 2), *await opened(mesh, other, 1)
    call = [commit(first), commit(third), commit(12345), commit(second), done(third)]
    assert mesh.switch.from_replica(mesh.streams["near"], call, mesh.clock())
    assert [(it.session, it.WhichOneof("kind")) for it in await mesh.at_edge(one)] == [
        (1, "commit"),
        (2, "commit"),
    ]
    assert [(it.session, it.WhichOneof("kind")) for it in await mesh.at_edge(other)] == [
        (1, "commit"),
        (1, "done"),
    ]


async def test_a_bad_frame_ends_its_session_alone() -> None:
    mesh = Mesh()
    edge = mesh.edge()
    first, second = await opened(mesh, edge, 1, 2)
    request = router_pb2.RouteRequest(
        frames=[draft(1), inference_pb2.SessionUp(session=2), draft(1, base=1), cancel(77)]
    )
    mesh.switch.from_edge(edge, request.frames, mesh.clock())
    (answer,) = await mesh.at_edge(edge)
    assert (answer.session, answer.error.reason) == (2, "MALFORMED_FRAME")
    assert [(it.session, it.WhichOneof("kind")) for it in await mesh.at_replica("near")] == [
        (first, "draft"),
        (second, "cancel"),
        (first, "draft"),
    ]


async def test_a_frame_without_a_number_ends_the_stream_behind_those_before_it() -> None:
    mesh = Mesh()
    edge = mesh.edge()
    await opened(mesh, edge, 1)
    frames = [draft(1), inference_pb2.SessionUp(draft=inference_pb2.Draft()), draft(1, base=1)]
    with pytest.raises(MalformedFrameError, match="names no session"):
        mesh.switch.from_edge(edge, frames, mesh.clock())
    assert len(await mesh.at_replica("near")) == 1


async def test_what_is_kept_is_not_the_message_it_came_in() -> None:
    """A message holds the memory of all its frames, whoever holds one of them."""
    mesh = Mesh()
    edge = mesh.edge()
    request = router_pb2.RouteRequest(frames=[opening(1), draft(1), cancel(99)])
    mesh.switch.from_edge(edge, request.frames, mesh.clock())
    session = mesh.table.of_edge(edge, 1)
    assert session is not None and session.replay is not None
    request.frames[0].open.request_id = request.frames[1].draft.ids.hex() + "changed"
    request.frames[1].draft.base = 7
    assert session.replay.open_frame.open.request_id != request.frames[0].open.request_id
    assert [it.draft.base for it in session.replay.drafts] == [0]


async def test_bytes_that_are_no_block_end_a_session_that_would_move() -> None:
    """Nobody decodes what is relayed: that a replica said nonsense shows when another goes on."""
    mesh = Mesh()
    edge = mesh.edge()
    bad, good = await opened(mesh, edge, 1, 2)
    for number, ids in ((bad, b"\xff\xff"), (good, block([5]).SerializeToString())):
        mesh.reply("near", accepted(number))
        tokens = inference_pb2.Commit(accepted=1, accepted_ids=ids, upto=1)
        mesh.reply("near", inference_pb2.SessionDown(session=number, commit=tokens))
    await mesh.at_edge(edge)
    mesh.lose("near")
    mesh.switch.retry(mesh.clock())
    (answer,) = await mesh.at_edge(edge)
    assert (answer.session, answer.error.reason) == (1, "MALFORMED_FRAME")
    session = mesh.table.of_edge(edge, 2)
    assert session is not None and session.state is SessionState.OPENING
    (sent,) = await mesh.at_replica("far")
    assert sent.open.resumed[0].count == 1
