"""A replica that stops answering without breaking its connection, and what it says of its load."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.rpc import bind, make_channel, make_server
from outrider.session.types import Priority
from outrider.testing import eventually
from outrider.v1 import inference_pb2, inference_pb2_grpc, router_pb2
from services.router.fleet.replica import PrefillLimits
from services.router.relay.policy import HangPolicy
from services.router.relay.switch import Switch
from services.router.upstream.replica_link import read_prefill_limits, watch_load
from tests.router.integration.test_app import get
from tests.router.relay.mesh import accepted, commit, opening
from tests.router.replica import Replica, routed, running_replicas, started

SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


class Hanging(Replica, health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Its health checks hang while `answering` is not set, and `stopping` ends its health watch."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.answering = asyncio.Event()
        self.answering.set()
        self.stopping = asyncio.Event()

    async def start(self) -> None:
        self._server = make_server()
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{bind(self._server, '127.0.0.1', 0)}"
        await self._server.start()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> health_pb2.HealthCheckResponse:
        await self.answering.wait()
        return SERVING

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        yield SERVING
        await self.stopping.wait()


async def test_a_pause_makes_a_replica_suspect_and_costs_no_session() -> None:
    replica = Hanging("a")
    async with routed(
        replica, probe_timeout_s=1.0, suspect_s=60.0, hang=HangPolicy(min_silence_s=60.0)
    ) as router:
        edge = router.edge()
        await edge.send(opening(1))
        number = (await replica.hear("open")).session
        replica.say(commit(number))  # silence counts from its last frame
        await edge.hear("commit")
        replica.answering.clear()
        await router.state_of("a", router_pb2.REPLICA_STATE_SUSPECT)
        await edge.send(opening(2))
        replica.say(commit(number, upto=2))
        await edge.hear("commit")
        assert replica.received.empty(), "the second one waits"
        replica.answering.set()
        await router.state_of("a", router_pb2.REPLICA_STATE_READY)
        await replica.hear("open")


async def test_a_replica_that_stays_silent_loses_its_stream_and_its_sessions() -> None:
    replica = Hanging("a")
    # It reports its load: without tokens it would be taken to hang at about the same time.
    async with routed(
        replica, probe_timeout_s=1.0, suspect_s=1.0, hang=HangPolicy(min_silence_s=60.0)
    ) as router:
        edge = router.edge()
        await edge.send(opening(1))
        number = (await replica.hear("open")).session
        replica.say(commit(number))
        await edge.hear("commit")
        replica.answering.clear()
        assert (await edge.hear("error")).error.reason == "REPLICA_LOST"
        await eventually(lambda: replica.num_streams == 0)
        await router.state_of("a", router_pb2.REPLICA_STATE_DOWN)
        replica.answering.set()
        await router.state_of("a", router_pb2.REPLICA_STATE_READY)
        await edge.send(opening(2))
        frame = await replica.received.get()
        if frame.WhichOneof("kind") == "cancel":  # of the first one, if it was sent in time
            assert frame.session == number
            frame = await replica.received.get()
        assert frame.WhichOneof("kind") == "open"


async def test_one_whose_health_watch_ends_takes_no_sessions_and_finishes_those_it_has() -> None:
    replica = Hanging("a")
    async with routed(replica, probe_interval_s=3600.0) as router:
        edge = router.edge()
        number = await started(edge, replica)
        replica.stopping.set()
        await router.state_of("a", router_pb2.REPLICA_STATE_DRAINING)
        replica.say(commit(number, upto=2))
        await edge.hear("commit")


async def test_a_defect_while_a_report_is_read_moves_the_links_sessions_and_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    near, far = Replica("near"), Replica("far")
    settings: dict[str, Any] = {"heartbeat_ms": 600_000, "silence_s": 3600.0}
    patient = HangPolicy(min_silence_s=3600.0, stall_s=3600.0)
    async with routed(near, far, hang=patient, log_level="critical", **settings) as router:
        load: dict[str, Any] = {"fixed_ms": 10.0, "row_ms": 1.0, "max_sessions": 64}
        far.report(**load, queued_sessions=8, queued_prompt_tokens=50_000)  # and no more
        async with asyncio.timeout(60):
            while not (
                (told := await router.replicas())["near"].max_sessions
                and told["far"].queued_sessions
            ):
                await asyncio.sleep(0.02)
        edge = router.edge()
        await edge.send(opening(1))
        number = (await near.hear("open")).session
        near.say(accepted(number))
        first = inference_pb2.Commit(id=5, upto=1)
        near.say(inference_pb2.SessionDown(session=number, commit=first))
        await edge.hear("opened")
        await edge.hear("commit")
        reported = Switch.reported

        def failing(self: Switch, now: float) -> None:
            monkeypatch.setattr(Switch, "reported", reported)
            raise RuntimeError("a defect")

        monkeypatch.setattr(Switch, "reported", failing)
        near.report(**load)
        assert (await far.hear("open")).open.resumed
        down = 'outrider_router_replica_transitions_total{state="down"'
        async with asyncio.timeout(60):
            while down not in await get(router.ports.admin, "/metrics"):
                await asyncio.sleep(0.02)


async def test_a_replica_that_contradicts_itself_is_asked_anew_once_and_then_left_alone() -> None:
    replica = Replica("a")
    async with routed(replica) as router:
        edge = router.edge()
        await edge.send(opening(1))
        for _ in range(2):
            number = (await replica.hear("open")).session
            replica.say(accepted(number, b"\x0b" * 32))
        await router.state_of("a", router_pb2.REPLICA_STATE_QUARANTINED)
        (told,) = (await router.stub.ListReplicas(router_pb2.ListReplicasRequest())).replicas
        assert told.inconsistent


@pytest.mark.parametrize("absurd", [math.inf, -math.inf, math.nan, -1.0, 1e30])
async def test_absurd_costs_leave_predictions_numbers(absurd: float) -> None:
    replica = Replica("a")
    async with running_replicas(replica), make_channel(replica.address) as channel:
        reports = watch_load(channel, min_interval_ms=1, max_interval_ms=1000)
        assert (await anext(reports)).fixed_ms == 10.0
        replica.report(fixed_ms=absurd, row_ms=absurd)
        load = await anext(reports)
    for cost_ms in (load.fixed_ms, load.row_ms):
        assert 0.0 <= cost_ms <= 1e6


async def test_a_report_says_whom_an_overloaded_replica_takes() -> None:
    replica = Replica("a")
    async with running_replicas(replica), make_channel(replica.address) as channel:
        reports = watch_load(channel, min_interval_ms=1, max_interval_ms=1000)
        first = await anext(reports)
        assert not first.queues_low and not first.refuses_sessions
        replica.report(overload_level=3, queues_low=True)
        load = await anext(reports)
        assert load.queues_low and not load.refuses_sessions
        replica.report(overload_level=4, queues_low=True, refuses_sessions=True)
        assert (await anext(reports)).refuses_sessions


async def test_a_report_says_how_many_may_wait() -> None:
    replica = Replica("a")
    async with running_replicas(replica), make_channel(replica.address) as channel:
        reports = watch_load(channel, min_interval_ms=1, max_interval_ms=1000)
        assert (await anext(reports)).max_queue is None
        replica.report(max_queued_sessions=0)
        assert (await anext(reports)).max_queue == 0


async def test_a_report_says_how_much_memory_there_is() -> None:
    replica = Replica("a")
    async with running_replicas(replica), make_channel(replica.address) as channel:
        reports = watch_load(channel, min_interval_ms=1, max_interval_ms=1000)
        assert (await anext(reports)).kv_blocks_total == 0
        replica.report(
            kv_blocks_total=100,
            kv_blocks_free=30,
            kv_blocks_owed=50,
            reply_tokens=200,
            low=inference_pb2.ClassLoad(kv_blocks=20),
            medium=inference_pb2.ClassLoad(kv_blocks=60),
        )
        load = await anext(reports)
        assert load.reply_tokens == 200
        assert [load.kv_room(priority) for priority in Priority] == [-20, 0, 60]


def test_prefill_limits_are_read_and_absurd_ones_bounded() -> None:
    assert read_prefill_limits(inference_pb2.GetModelResponse()) is None
    told = inference_pb2.PrefillLimits(
        max_chunk_tokens=256,
        min_chunk_tokens=12,
        max_call_ms=40,
        max_reply_calls=5,
        min_stretch=1.25,
    )
    found = read_prefill_limits(inference_pb2.GetModelResponse(prefill_limits=told))
    assert found == PrefillLimits(256, 12, 40.0, 5.0, 1.25)
    told = inference_pb2.PrefillLimits(
        max_call_ms=math.nan, max_reply_calls=math.inf, min_stretch=-1
    )
    found = read_prefill_limits(inference_pb2.GetModelResponse(prefill_limits=told))
    assert found == PrefillLimits(1, 1, 0.0, 1e6, 0.0)
