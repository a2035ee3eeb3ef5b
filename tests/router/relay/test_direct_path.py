"""Sessions whose commits go by this router: it keeps their places and prices, and nothing to move
them with."""

from __future__ import annotations

import pytest

from outrider.errors import UnavailableError
from outrider.tls import Role
from outrider.tls.identity import PeerIdentity
from outrider.v1 import inference_pb2
from services.router.relay.direct_edges import direct_name
from services.router.relay.sessions import SessionState
from tests.router.relay.mesh import (
    Mesh,
    accepted,
    cancel,
    done,
    failed,
    opening,
    reasons,
)

EDGE = PeerIdentity(Role.EDGE, "us", "one")


def granting(number: int) -> inference_pb2.SessionDown:
    frame = accepted(number)
    frame.opened.direct.ticket = b"t" * 16
    return frame


def went_direct(number: int, upto: int = 1) -> inference_pb2.SessionDown:
    return inference_pb2.SessionDown(session=number, direct=inference_pb2.SessionDirect(upto=upto))


def progress(number: int, upto: int) -> inference_pb2.SessionDown:
    return inference_pb2.SessionDown(
        session=number, progress=inference_pb2.SessionProgress(upto=upto)
    )


async def opened(mesh: Mesh, edge: int, number: int = 1) -> int:
    """The session's number at the replica, with its first token."""
    mesh.send(edge, opening(number, direct=inference_pb2.DirectWish(edge="its own word")))
    (sent,) = await mesh.at_replica("near")
    mesh.reply("near", granting(sent.session))
    first = inference_pb2.Commit(upto=1, id=7)
    mesh.reply("near", inference_pb2.SessionDown(session=sent.session, commit=first))
    return sent.session


@pytest.mark.parametrize(
    ("caller", "regions", "expected"),
    [
        (EDGE, (), None),
        (EDGE, ("eu",), None),
        (EDGE, ("eu", "us"), "edge/us/one"),
        (EDGE, ("*",), "edge/us/one"),
        (PeerIdentity(Role.EDGE), ("us",), None),
        (None, ("us",), None),
        (None, ("*",), ""),
    ],
)
def test_edges_of_the_regions_that_the_settings_name_may(
    caller: PeerIdentity | None, regions: tuple[str, ...], expected: str | None
) -> None:
    assert direct_name(caller, regions) == expected


async def test_a_replica_is_told_which_edge_and_an_edge_which_replica() -> None:
    mesh = Mesh()
    edge = mesh.edge("edge/us/one")
    mesh.send(edge, opening(direct=inference_pb2.DirectWish(edge="edge/us/other")))
    (sent,) = await mesh.at_replica("near")
    assert sent.open.direct.edge == "edge/us/one", "not what the edge says of itself"
    mesh.reply("near", granting(sent.session))
    (frame,) = await mesh.at_edge(edge)
    assert (frame.opened.direct.address, frame.opened.direct.ticket) == ("h:1", b"t" * 16)


async def test_without_the_setting_nothing_of_it_goes_through() -> None:
    mesh = Mesh()
    edge = mesh.edge()
    mesh.send(edge, opening(direct=inference_pb2.DirectWish()))
    (sent,) = await mesh.at_replica("near")
    assert not sent.open.HasField("direct")
    mesh.reply("near", granting(sent.session))
    (frame,) = await mesh.at_edge(edge)
    assert not frame.opened.HasField("direct")


async def test_the_router_counts_on_and_keeps_nothing() -> None:
    mesh = Mesh()
    edge = mesh.edge("")
    upstream = await opened(mesh, edge)
    session = mesh.table.of_edge(edge, 1)
    assert session is not None and session.open_frame.HasField("open")
    mesh.reply("near", went_direct(upstream))
    assert session.is_direct and session.replay is None
    assert session.num_committed == 1
    for upto in (40, 30):
        mesh.reply("near", progress(upstream, upto))
        assert session.num_committed == 40, "what is final stays so"
    kinds = [frame.WhichOneof("kind") for frame in await mesh.at_edge(edge)]
    assert kinds == ["opened", "commit", "direct"], "the edge knows better than its progress"
    end = done(upstream)
    end.done.upto = 50
    mesh.reply("near", end)
    assert session.num_committed == 50 and session.state is SessionState.ENDED
    mesh.table.check_invariants()


async def test_progress_of_a_session_that_is_not_direct_says_nothing() -> None:
    mesh = Mesh()
    edge = mesh.edge("")
    upstream = await opened(mesh, edge)
    mesh.reply("near", progress(upstream, 40))
    session = mesh.table.of_edge(edge, 1)
    assert session is not None and session.num_committed == 1


async def test_a_replica_cannot_send_a_session_past_the_router_before_its_first_token() -> None:
    mesh = Mesh()
    edge = mesh.edge("")
    mesh.send(edge, opening(direct=inference_pb2.DirectWish()))
    (sent,) = await mesh.at_replica("near")
    mesh.reply("near", went_direct(sent.session))
    session = mesh.table.of_edge(edge, 1)
    assert session is not None and session.replay is not None
    assert await mesh.at_edge(edge) == []


@pytest.mark.parametrize("how", ["lost", "hung", "failed"])
async def test_the_edge_is_told_to_open_it_again_where_the_router_would_have_moved_it(
    how: str,
) -> None:
    mesh = Mesh()
    edge = mesh.edge("")
    upstream = await opened(mesh, edge)
    mesh.reply("near", went_direct(upstream))
    await mesh.at_edge(edge)
    if how == "lost":
        mesh.lose("near")
    elif how == "hung":
        for _ in range(40):
            mesh.clock.advance(1.0)
            mesh.switch.expire(mesh.clock())
    else:
        mesh.reply("near", failed(upstream, UnavailableError("the stream to the edge was lost")))
    ((number, reason),) = reasons(await mesh.at_edge(edge))
    assert (number, reason) == (1, "UNAVAILABLE" if how == "failed" else "REPLICA_LOST")
    assert await mesh.at_replica("far") == [], "the router has not all of its tokens"
    assert len(mesh.table) == 0


async def test_a_session_that_moved_may_go_direct_at_its_next_replica() -> None:
    mesh = Mesh()
    edge = mesh.edge("")
    await opened(mesh, edge)
    await mesh.at_edge(edge)
    mesh.lose("near")
    (again,) = await mesh.at_replica("far")
    assert again.open.HasField("direct")
    mesh.reply("far", granting(again.session))
    (moved,) = await mesh.at_edge(edge)
    assert moved.moved.direct.address == "h:2"


async def test_a_cancel_goes_through_the_router() -> None:
    mesh = Mesh()
    edge = mesh.edge("")
    upstream = await opened(mesh, edge)
    mesh.reply("near", went_direct(upstream))
    await mesh.at_replica("near")
    mesh.send(edge, cancel())
    (sent,) = await mesh.at_replica("near")
    assert sent.HasField("cancel")
