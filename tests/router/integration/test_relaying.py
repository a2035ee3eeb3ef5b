"""Sessions through the router over real gRPC."""

from __future__ import annotations

import asyncio

from outrider.v1 import common_pb2, inference_pb2, router_pb2
from tests.router.relay.mesh import accepted, commit, done, opening
from tests.router.replica import Edge, Replica, RouterUnderTest


def test_both_sides_requests_and_responses_are_the_same_bytes() -> None:
    """A capture of one side reads as the other's."""
    pairs = [
        (router_pb2.RouteRequest.DESCRIPTOR, inference_pb2.GenerateRequest.DESCRIPTOR),
        (router_pb2.RouteResponse.DESCRIPTOR, inference_pb2.GenerateResponse.DESCRIPTOR),
    ]
    for edge_side, replica_side in pairs:
        (one,), (other,) = edge_side.fields, replica_side.fields
        assert (one.number, one.type, one.message_type) == (
            other.number,
            other.type,
            other.message_type,
        )


async def answer(replica: Replica) -> None:
    """Five commits for every open, which echo the size of its prompt."""
    while True:
        frame = await replica.received.get()
        if frame.WhichOneof("kind") == "open":
            replica.say(accepted(frame.session))
            for upto in range(1, 6):
                replica.say(commit(frame.session, upto * 1000 + frame.open.ids.tail.count))
            replica.say(done(frame.session))


async def ten_sessions(edge: Edge, index: int) -> None:
    """Every session gets its own commits, in order, on the stream of its edge."""
    for number in range(1, 11):
        await edge.send(opening(number, tokens=index * 10 + number))
    got: dict[int, list[int]] = {number: [] for number in range(1, 11)}
    finished = 0
    while finished < 10:
        frame = await edge.next()
        assert frame is not None
        kind = frame.WhichOneof("kind")
        finished += kind == "done"
        if kind == "commit":
            got[frame.session].append(frame.commit.upto)
    for number, uptos in got.items():
        assert uptos == [upto * 1000 + index * 10 + number for upto in range(1, 6)]
    await edge.call.done_writing()
    assert await edge.next() is None


async def test_many_sessions_over_many_edge_streams(
    router: RouterUnderTest, near: Replica, far: Replica
) -> None:
    """40 sessions of 4 edges echo their own prompt size through interleaved commits."""
    answering = [asyncio.create_task(answer(replica)) for replica in (near, far)]
    await asyncio.gather(*(ten_sessions(router.edge(), index) for index in range(4)))
    for task in answering:
        task.cancel()
    states = await router.replicas()
    assert states["near"].sessions == states["far"].sessions == 0


async def test_the_opens_content_arrives_unchanged(router: RouterUnderTest, near: Replica) -> None:
    edge = router.edge()
    sent = opening(7, tokens=3)
    sent.open.sampling.seed = 99
    sent.open.request_id = "r"
    await edge.send(sent)
    got = await near.hear("open")
    assert got.open.trace.traceparent, "the router's span is the replica's parent"
    assert got.open.echo_accepted, "to know what is committed"
    got.open.ClearField("trace")
    got.open.ClearField("echo_accepted")
    assert got.open.priority == common_pb2.PRIORITY_MEDIUM, "the class it was given"
    got.open.ClearField("priority")
    got.session = 7
    assert got == sent
