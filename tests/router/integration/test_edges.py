"""Edges that leave, cancel, break the rules or do not read, over real gRPC."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from outrider.errors import MalformedFrameError
from outrider.rpc import from_rpc_error
from outrider.v1 import common_pb2, inference_pb2
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
