"""Replicas that refuse, die, come back or stop serving, over real gRPC."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from outrider.errors import (
    InvalidRequestError,
    OutriderError,
    OverloadedError,
    UnavailableError,
)
from outrider.rpc import from_rpc_error
from outrider.testing import free_tcp_port, leak_check
from outrider.v1 import common_pb2, inference_pb2, router_pb2
from outrider.wire import error_to_proto
from services.router.recent_replies import WINDOW_S
from services.router.relay.policy import FailoverPolicy
from tests.router.relay.mesh import IDENTITY, accepted, commit, done, opening
from tests.router.replica import (
    Replica,
    RouterUnderTest,
    routed,
    running_replicas,
    running_router,
    started,
)


async def test_a_session_goes_on_elsewhere_when_its_replica_dies_and_comes_back(
    router: RouterUnderTest, near: Replica, far: Replica
) -> None:
    edge = router.edge()
    await edge.send(opening())
    sent = await near.hear("open")
    near.say(accepted(sent.session))
    near.say(tokens(sent.session, 0, 3))
    await edge.hear("opened")
    await edge.hear("commit")
    await near.kill()
    again = await far.hear("open")
    assert [resumed.payload for resumed in again.open.resumed] == [b"abc"]
    far.say(accepted(again.session))
    far.say(tokens(again.session, 3, 2))
    assert (await edge.hear("moved")).session == 1
    assert (await edge.hear("commit")).commit.base == 3
    await router.state_of("near", router_pb2.REPLICA_STATE_DOWN)
    await near.start()
    await router.state_of("near", router_pb2.REPLICA_STATE_READY)
    await started(edge, near, 2)


def tokens(session: int, base: int, count: int) -> inference_pb2.SessionDown:
    """A commit of so many ids."""
    found = inference_pb2.Commit(base=base, ids=b"abc"[:count], upto=base + count)
    return inference_pb2.SessionDown(session=session, commit=found)


@pytest.mark.parametrize(
    ("error", "goes_alone"),
    [(UnavailableError("it ends"), True), (OverloadedError("you do not read"), False)],
)
async def test_what_the_router_did_not_read_is_no_sessions_fault(
    router: RouterUnderTest,
    near: Replica,
    far: Replica,
    error: OutriderError,
    goes_alone: bool,
) -> None:
    await router.edge().send(opening())
    await near.hear("open")
    near.give_up(error)
    assert (await far.hear("open")).open.alone == goes_alone


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


async def test_a_chat_waits_for_replicas_that_lost_their_engines_and_are_started_anew(
    router: RouterUnderTest, near: Replica, far: Replica
) -> None:
    for replica in (near, far):
        replica.report(draining=True, restarting=True)
    await router.state_of("near", router_pb2.REPLICA_STATE_DRAINING)
    await router.state_of("far", router_pb2.REPLICA_STATE_DRAINING)
    edge = router.edge()
    await edge.send(opening())
    await edge.send(opening(2, model="nobody's"))
    assert (await edge.hear("error")).session == 2, "the first one waits"
    await near.kill()
    await near.start()
    sent = await near.hear("open")
    near.say(accepted(sent.session))
    await edge.hear("opened")


async def test_a_chat_that_both_refuse_before_the_router_hears_that_they_stop_waits_too(
    router: RouterUnderTest, near: Replica, far: Replica
) -> None:
    edge = router.edge()
    await edge.send(opening())
    stops = OverloadedError("it takes no new sessions", metadata={"draining": "true"})
    for replica in (near, far):
        sent = await replica.hear("open")
        refused = inference_pb2.SessionDown(session=sent.session, error=error_to_proto(stops))
        replica.say(refused)
    for replica in (near, far):
        replica.report(draining=True, restarting=True)
    await router.state_of("near", router_pb2.REPLICA_STATE_DRAINING)
    await near.kill()
    await near.start()
    again = await near.hear("open")
    near.say(accepted(again.session))
    await edge.hear("opened")


async def test_a_chat_does_not_wait_for_replicas_that_an_operator_drained(
    router: RouterUnderTest, near: Replica, far: Replica
) -> None:
    for replica in (near, far):
        replica.report(draining=True)
    await router.state_of("near", router_pb2.REPLICA_STATE_DRAINING)
    await router.state_of("far", router_pb2.REPLICA_STATE_DRAINING)
    edge = router.edge()
    await edge.send(opening())
    assert (await edge.hear("error")).error.reason == "NO_REPLICA"


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
    assert entry.model_identity == near.identity
    assert entry.rtt_ms > 0.0
    only = await router.stub.ListReplicas(router_pb2.ListReplicasRequest(region="eu"))
    assert [replica.name for replica in only.replicas] == ["far"]


async def test_a_replica_that_names_an_endless_model_identity_gets_no_sessions() -> None:
    endless = Replica("endless")
    endless.identity = bytes(65)
    async with routed(endless) as router:
        edge = router.edge()
        await edge.send(opening())
        refusal = await edge.hear("error")
        assert refusal.error.reason == "NO_REPLICA"
        assert (await router.replicas())["endless"].model_identity == b""


OTHER = b"\x0b" * 32


async def test_a_session_is_bound_to_the_model_that_opens_it_whatever_was_reported() -> None:
    only = Replica("only")
    async with routed(only, failover=FailoverPolicy(timeout_s=0.5)) as router:
        await router.state_of("only", router_pb2.REPLICA_STATE_READY)
        edge = router.edge()
        only.identity = OTHER
        await edge.send(opening())
        only.say(accepted((await only.hear("open")).session, OTHER))
        again = await only.hear("open")  # once the router has asked what it serves now
        assert not again.open.alone, "no request is to blame"
        only.say(accepted(again.session, OTHER))
        only.say(tokens(again.session, 0, 2))
        assert (await edge.hear("opened")).opened.model_identity == OTHER
        await edge.hear("commit")
        await only.kill()
        only.identity = IDENTITY
        await only.start()
        assert (await edge.hear("error")).error.reason == "NO_REPLICA"
        assert only.received.empty()


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


async def test_an_operator_drains_a_replica_and_takes_it_back(
    router: RouterUnderTest, near: Replica, far: Replica
) -> None:
    edge = router.edge()
    await edge.send(opening())
    first = await near.hear("open")
    await router.stub.DrainReplica(router_pb2.DrainReplicaRequest(replica="near"))
    await router.state_of("near", router_pb2.REPLICA_STATE_DRAINING)
    await edge.send(opening(2))
    await far.hear("open")
    near.say(accepted(first.session))  # what it has goes on
    near.say(tokens(first.session, 0, 3))
    near.say(done(first.session))
    for kind in ("opened", "commit", "done"):
        assert (await edge.hear(kind)).session == 1
    await router.stub.DrainReplica(router_pb2.DrainReplicaRequest(replica="near", undo=True))
    await router.state_of("near", router_pb2.REPLICA_STATE_READY)
    await edge.send(opening(3))
    await near.hear("open")


async def test_only_a_replica_that_is_there_can_be_drained(
    router: RouterUnderTest, near: Replica
) -> None:
    async def refused(name: str) -> OutriderError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await router.stub.DrainReplica(router_pb2.DrainReplicaRequest(replica=name))
        return from_rpc_error(caught.value)

    unknown = await refused("nix")
    assert isinstance(unknown, InvalidRequestError)
    assert unknown.message == "this router knows no replica 'nix'; it has far, near"
    await near.kill()
    assert isinstance(await refused("near"), UnavailableError)


async def test_the_replica_table_tells_load_and_the_models_what_came_of_sessions(
    router: RouterUnderTest, near: Replica
) -> None:
    edge = router.edge()
    await edge.send(opening())
    session = (await near.hear("open")).session
    near.say(accepted(session))
    near.say(tokens(session, 0, 3))
    usage = common_pb2.Usage(completion_tokens=3, draft_tokens=2, accepted_tokens=1)
    ended = inference_pb2.SessionDone(usage=usage)
    near.say(inference_pb2.SessionDown(session=session, done=ended))
    for kind in ("opened", "commit", "done"):
        await edge.hear(kind)
    near.report(running_sessions=2, max_sessions=64, kv_blocks_total=10, kv_blocks_free=4)
    async with asyncio.timeout(60):
        while (await router.replicas())["near"].running_sessions != 2:
            await asyncio.sleep(0.02)
    row = (await router.replicas())["near"]
    assert (row.max_sessions, row.kv_blocks_total, row.kv_blocks_free) == (64, 10, 4)
    (model,) = (await router.stub.ListModels(router_pb2.ListModelsRequest())).models
    recent = next(it.recent for it in model.regions if it.region == row.region)
    assert (recent.first_tokens, recent.ended) == (1, 1)
    assert 0.0 < recent.ttft_p50_ms == recent.ttft_p95_ms
    assert (recent.completion_tokens, recent.draft_tokens, recent.accepted_tokens) == (3, 2, 1)
    assert recent.window_s == WINDOW_S
