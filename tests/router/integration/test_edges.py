"""Edges that leave, cancel, break the rules or do not read, over real gRPC."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from outrider.errors import DuplicateSessionError, MalformedFrameError
from outrider.rpc import from_rpc_error
from outrider.session.runs import later_run
from outrider.v1 import common_pb2, inference_pb2
from outrider.wire import error_from_proto
from services.router.relay.policy import HangPolicy
from tests.router.relay.mesh import commit, done, opening
from tests.router.replica import Replica, RouterUnderTest, running_router, started


async def test_an_edge_that_disconnects_cancels_at_the_replica(
    router: RouterUnderTest, near: Replica
) -> None:
    leaving, staying = router.edge(), router.edge()
    number = await started(leaving, near)
    theirs = await started(staying, near)
    leaving.call.cancel()
    assert (await near.hear("cancel")).session == number
    near.say(done(theirs))
    await staying.hear("done")


async def test_bytes_that_are_no_frame_end_their_stream_alone(
    router: RouterUnderTest, near: Replica
) -> None:
    good = router.edge()
    await started(good, near)
    route: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
    route = router.channel.stream_stream("/outrider.v1.RouterService/Route")
    raw = route()
    await raw.write(b"\xff\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while await raw.read() is not grpc.aio.EOF:
            pass
    assert isinstance(from_rpc_error(caught.value), MalformedFrameError)
    await started(good, near, 2)


async def test_an_edge_that_never_reads_is_bounded_and_stalls_nobody(near: Replica) -> None:
    patient = HangPolicy(min_silence_s=60.0)
    async with running_router(near, edge_buffer_frames=50, hang=patient) as router:
        slow, other = router.edge(), router.edge()
        await slow.send(opening())
        number = (await near.hear("open")).session
        theirs = await started(other, near)
        # HTTP/2 flow control takes some megabytes, the buffer 50 frames, then it is over.
        payload = common_pb2.TokenBlock(count=1, payload=bytes(64 << 10))
        for upto in range(400):
            frame = commit(number, upto)
            frame.commit.ids = payload.SerializeToString()
            near.say(frame)
        assert (await near.hear("cancel")).cancel.reason == "OVERLOADED"
        near.say(commit(theirs, upto=77))
        assert (await other.hear("commit")).commit.upto == 77
        last: inference_pb2.SessionDown | None = inference_pb2.SessionDown()
        async with asyncio.timeout(60):
            while last is not None and last.WhichOneof("kind") != "error":
                last = await slow.next()
        assert last is not None
        assert last.error.reason == "OVERLOADED"
        near.say(commit(theirs, upto=78))
        assert (await other.hear("commit")).commit.upto == 78, "nobody else's session is touched"


def run_of_a_chat(number: int, run: int) -> inference_pb2.SessionUp:
    """An open after two tokens."""
    begun = common_pb2.TokenBlock(count=2, payload=b"r")
    return opening(number, request_id="chat", resume=begun, run=run)


async def test_an_edge_that_comes_late_leaves_the_chat_to_where_its_client_is(
    router: RouterUnderTest, near: Replica
) -> None:
    cut_off, live = router.edge(), router.edge()
    await live.send(run_of_a_chat(1, run=2))
    session = (await near.hear("open")).session
    await cut_off.send(run_of_a_chat(1, run=1))
    error = error_from_proto((await cut_off.hear("error")).error)
    assert isinstance(error, DuplicateSessionError) and later_run(error) == 2
    near.say(commit(session, upto=3))
    await live.hear("commit")
    near.say(done(session))
    await live.hear("done")
    assert near.received.empty(), "the replica heard of one run alone"


async def test_a_client_that_goes_to_another_edge_takes_its_chat_along(
    router: RouterUnderTest, near: Replica
) -> None:
    left, live = router.edge(), router.edge()
    await left.send(run_of_a_chat(1, run=1))
    earlier = (await near.hear("open")).session
    await live.send(run_of_a_chat(1, run=2))
    assert (await near.hear("cancel")).session == earlier
    later = (await near.hear("open")).session
    assert (await left.hear("error")).error.reason == "DUPLICATE_SESSION"
    near.say(done(later))
    await live.hear("done")
