"""The router over real gRPC: relays, refusals, losses, health, back-pressure, leaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.errors import ConfigError, MalformedFrameError, OverloadedError
from outrider.rpc import from_rpc_error
from outrider.testing import eventually, free_tcp_port, leak_check
from outrider.v1 import common_pb2, inference_pb2, router_pb2
from services.router.config import ReplicaConfig
from tests.router.relay.mesh import (
    accepted,
    cancel,
    commit,
    done,
    draft,
    failed,
    opening,
)
from tests.router.replica import (
    Edge,
    Replica,
    RouterUnderTest,
    running_replicas,
    running_router,
)


@pytest.fixture
async def near() -> AsyncIterator[Replica]:
    replica = Replica("near", "us")
    async with running_replicas(replica):
        yield replica


@pytest.fixture
async def far() -> AsyncIterator[Replica]:
    replica = Replica("far", "eu")
    async with running_replicas(replica):
        yield replica


@pytest.fixture
async def router(near: Replica, far: Replica) -> AsyncIterator[RouterUnderTest]:
    """A router whose near replica wins by 100 ms: the far one reports a queue."""
    async with running_router(near, far) as router:
        far.report(fixed_ms=10.0, row_ms=1.0, queued_prompt_tokens=100, max_sessions=64)
        async with asyncio.timeout(5):
            while (await router.replicas())["far"].predicted_wait_ms < 100.0:
                pass
        yield router


WHOLE_SERVER = health_pb2.HealthCheckRequest()


async def started(edge: Edge, replica: Replica, number: int = 1) -> int:
    """A session that has committed; what the replica calls it."""
    await edge.send(opening(number))
    sent = await replica.hear("open")
    replica.say(commit(sent.session))
    await edge.hear("commit")
    return sent.session


def test_both_sides_requests_and_responses_are_the_same_bytes() -> None:
    """What forwarding a RouteRequest as a GenerateRequest rests on."""
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


async def test_many_sessions_over_many_edge_streams(
    router: RouterUnderTest, near: Replica, far: Replica
) -> None:
    """40 sessions of 4 edges echo their own prompt size through interleaved commits."""

    async def answer(replica: Replica) -> None:
        while True:
            frame = await replica.received.get()
            if frame.WhichOneof("kind") == "open":
                replica.say(accepted(frame.session))
                for upto in range(1, 6):
                    replica.say(commit(frame.session, upto * 1000 + frame.open.ids.tail.count))
                replica.say(done(frame.session))

    async def one_edge(index: int) -> None:
        edge = router.edge()
        for number in range(1, 11):
            await edge.send(opening(number, tokens=index * 10 + number))
        got: dict[int, list[int]] = {number: [] for number in range(1, 11)}
        finished = 0
        while finished < 10:
            response = await edge.call.read()
            assert isinstance(response, router_pb2.RouteResponse)
            kind = response.frame.WhichOneof("kind")
            finished += kind == "done"
            if kind == "commit":
                got[response.frame.session].append(response.frame.commit.upto)
        for number, uptos in got.items():
            assert uptos == [upto * 1000 + index * 10 + number for upto in range(1, 6)]
        await edge.call.done_writing()
        assert await edge.call.read() is grpc.aio.EOF

    answering = [asyncio.create_task(answer(replica)) for replica in (near, far)]
    await asyncio.gather(*(one_edge(index) for index in range(4)))
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
    got.open.ClearField("trace")
    got.session = 7
    assert got == sent


async def test_a_refused_session_is_served_by_the_other_replica(
    router: RouterUnderTest, near: Replica, far: Replica
) -> None:
    edge = router.edge()
    await edge.send(opening())
    near.say(failed((await near.hear("open")).session, OverloadedError("full")))
    far.say(done((await far.hear("open")).session))
    await edge.hear("done")


async def test_a_replica_that_dies_before_the_first_commit_is_replaced(
    router: RouterUnderTest, near: Replica, far: Replica
) -> None:
    edge = router.edge()
    await edge.send(opening())
    await edge.send(draft(base=3))
    await near.hear("open")
    await near.hear("draft")
    await near.kill()
    sent = await far.hear("open")
    assert (await far.hear("draft")).draft.base == 3
    far.say(commit(sent.session, upto=2))
    assert (await edge.hear("commit")).commit.upto == 2


async def test_a_replica_that_dies_later_is_a_clear_error_and_comes_back(
    router: RouterUnderTest, near: Replica
) -> None:
    edge = router.edge()
    await started(edge, near)
    await near.kill()
    lost = await edge.hear("error")
    assert lost.error.reason == "REPLICA_LOST"
    await router.state_of("near", router_pb2.REPLICA_STATE_DOWN)
    await near.start()
    await router.state_of("near", router_pb2.REPLICA_STATE_READY)
    await started(edge, near, 2)


async def test_a_replica_that_does_not_serve_gets_no_new_sessions_and_keeps_its_own(
    router: RouterUnderTest, near: Replica, far: Replica
) -> None:
    edge = router.edge()
    number = await started(edge, near)
    assert near.health is not None
    near.health.set_serving(False)
    await router.state_of("near", router_pb2.REPLICA_STATE_DRAINING)
    await edge.send(opening(2))
    await far.hear("open")
    near.say(commit(number, upto=2))
    assert (await edge.hear("commit")).session == 1
    near.health.set_serving(True)
    await router.state_of("near", router_pb2.REPLICA_STATE_READY)
    near.report(draining=True)
    await router.state_of("near", router_pb2.REPLICA_STATE_DRAINING)


async def test_a_replica_that_shuts_down_ends_its_own_sessions(
    router: RouterUnderTest, near: Replica
) -> None:
    edge = router.edge()
    number = await started(edge, near)
    assert near.health is not None
    near.health.close()
    await router.state_of("near", router_pb2.REPLICA_STATE_DRAINING)
    near.say(commit(number, upto=2))
    near.say(done(number))
    await edge.hear("commit")
    await edge.hear("done")


async def test_the_replica_list_shows_what_placement_sees(
    router: RouterUnderTest, near: Replica
) -> None:
    edge = router.edge()
    await started(edge, near)
    entry = (await router.replicas())["near"]
    assert (entry.region, entry.address, entry.model) == ("us", near.address, "m")
    assert (entry.vocabulary_digest, entry.sessions) == (near.digest, 1)
    assert 0.0 < entry.rtt_ms < 500.0
    only = await router.stub.ListReplicas(router_pb2.ListReplicasRequest(region="eu"))
    assert [replica.name for replica in only.replicas] == ["far"]


async def test_no_replica_is_a_clear_error_and_the_stream_lives_on() -> None:
    absent = Replica("absent")
    absent.port = free_tcp_port()
    absent.address = f"127.0.0.1:{absent.port}"
    async with leak_check(), running_router(absent) as router:
        edge = router.edge()
        await edge.send(opening())
        refusal = await edge.hear("error")
        assert refusal.error.reason == "NO_REPLICA"
        assert "absent DOWN" in refusal.error.message
        async with running_replicas(absent):
            await router.state_of("absent", router_pb2.REPLICA_STATE_READY)
            await started(edge, absent, 2)


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


async def test_a_cancelled_session_ends_with_the_replicas_word(
    router: RouterUnderTest, near: Replica
) -> None:
    edge = router.edge()
    number = await started(edge, near)
    await edge.send(cancel())
    assert (await near.hear("cancel")).session == number
    finish = inference_pb2.SessionDone(finish_reason=common_pb2.FINISH_REASON_CANCELLED)
    near.say(inference_pb2.SessionDown(session=number, done=finish))
    assert (await edge.hear("done")).done == finish


async def test_a_frame_without_a_number_ends_its_stream_alone(
    router: RouterUnderTest, near: Replica
) -> None:
    bad, good = router.edge(), router.edge()
    number = await started(bad, near)
    await started(good, near)
    await bad.send(draft(0))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while await bad.call.read() is not grpc.aio.EOF:
            pass
    assert isinstance(from_rpc_error(caught.value), MalformedFrameError)
    assert (await near.hear("cancel")).session == number
    await started(good, near, 2)


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
    async with running_router(near, edge_buffer_frames=50) as router:
        slow, other = router.edge(), router.edge()
        await slow.send(opening())
        number = (await near.hear("open")).session
        theirs = await started(other, near)
        # HTTP/2 flow control takes some megabytes, the buffer 50 frames, then it is over.
        payload = common_pb2.TokenBlock(count=1, payload=bytes(64 << 10))
        for upto in range(400):
            frame = commit(number, upto)
            frame.commit.ids.CopyFrom(payload)
            near.say(frame)
        assert (await near.hear("cancel")).cancel.reason == "OVERLOADED"
        near.say(commit(theirs, upto=77))
        assert (await other.hear("commit")).commit.upto == 77
        last = inference_pb2.SessionDown()
        async with asyncio.timeout(5):
            while last.WhichOneof("kind") != "error":
                response = await slow.call.read()
                assert isinstance(response, router_pb2.RouteResponse)
                last = response.frame
        assert last.error.reason == "OVERLOADED"
        assert (await router.replicas())["near"].sessions == 1


async def test_nothing_is_left_behind() -> None:
    near = Replica("near")
    async with leak_check(), running_replicas(near):
        async with running_router(near) as router:
            edges = [router.edge() for _ in range(3)]
            for edge in edges:
                await started(edge, near)
            edges[0].call.cancel()
            await near.hear("cancel")
            await eventually(lambda: near.num_streams == 1)
        await eventually(lambda: near.num_streams == 0)


async def test_a_stopping_router_lets_running_sessions_finish() -> None:
    near = Replica("near")

    async def finish(router: RouterUnderTest, edge: Edge, number: int) -> None:
        async for answer in health_pb2_grpc.HealthStub(router.channel).Watch(WHOLE_SERVER):
            if answer.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                break
        await edge.send(opening(2))
        assert (await edge.hear("error")).error.reason == "UNAVAILABLE"
        near.say(done(number))
        await edge.hear("done")
        assert await edge.call.read() is grpc.aio.EOF

    async with leak_check(), running_replicas(near):
        async with running_router(near, drain_s=30.0) as router:
            edge = router.edge()
            number = await started(edge, near)
            finishing = asyncio.create_task(finish(router, edge, number))
        await finishing


async def test_a_port_that_is_taken_is_a_config_error(router: RouterUnderTest) -> None:
    with pytest.raises(ConfigError, match="taken"):
        async with running_router(port=router.ports.main):
            pass


async def test_the_admin_port_tells_readiness_and_metrics(near: Replica) -> None:
    unreachable = ReplicaConfig("gone", "us", f"127.0.0.1:{free_tcp_port()}")
    async with running_router(near) as router:
        await started(router.edge(), near)
        assert "1 READY" in await _get(router.ports.admin, "/ready")
        async with asyncio.timeout(5):  # the next tick brings gauges up to date
            while "outrider_router_sessions 1.0" not in await _get(router.ports.admin, "/metrics"):
                pass
        metrics = await _get(router.ports.admin, "/metrics")
        assert "outrider_router_placements_total" in metrics
        assert "outrider_router_replicas_ready 1.0" in metrics
    async with running_router(replicas=(unreachable,)) as router:
        assert "503" in await _get(router.ports.admin, "/ready")


async def _get(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()
