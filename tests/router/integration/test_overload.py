"""A replica without room, over real gRPC: who waits, who is shed, what operators see."""

from __future__ import annotations

import asyncio

from outrider.v1 import common_pb2
from services.router.admission.policy import AdmissionPolicy
from tests.router.integration.test_app import get
from tests.router.relay.mesh import commit, done, opening
from tests.router.replica import Replica, running_router, started

LOW, HIGH = common_pb2.PRIORITY_LOW, common_pb2.PRIORITY_HIGH
FULL = {"running_sessions": 8, "queued_sessions": 8, "max_sessions": 8, "service_ms": 9000.0}
COST = {"fixed_ms": 10.0, "row_ms": 1.0}


async def test_low_is_shed_high_waits_and_goes_on_when_there_is_room(near: Replica) -> None:
    async with running_router(near, admission=AdmissionPolicy(max_waiting=1)) as router:
        near.report(**FULL, **COST)
        async with asyncio.timeout(60):
            while (await router.replicas())["near"].sessions < 16:
                await asyncio.sleep(0.02)
        edge = router.edge()
        await edge.send(opening(1, priority=LOW))
        await edge.send(opening(2, priority=HIGH))
        shed = (await edge.hear("error")).error
        assert (shed.reason, shed.metadata["cause"]) == ("OVERLOADED", "shed")
        assert shed.retry_delay_ms > 0
        wanted = 'outrider_router_refused_total{cause="shed",model="m",priority="LOW"} 1.0'
        async with asyncio.timeout(60):
            while wanted not in await get(router.ports.admin, "/metrics"):
                await asyncio.sleep(0.02)
        near.report(max_sessions=8, **COST)
        sent = await near.hear("open")
        assert sent.open.priority == HIGH
        near.say(commit(sent.session))
        await edge.hear("commit")
        near.say(done(sent.session))
        await edge.hear("done")
        await started(edge, near, 3)


async def test_operators_see_the_queue_and_the_replicas_there_should_be(near: Replica) -> None:
    async with running_router(near) as router:
        await started(router.edge(), near)
        wanted = (
            'outrider_router_desired_replicas{model="m",region="us"} 1.0',
            'outrider_router_serving_replicas{model="m",region="us"} 1.0',
            'outrider_router_waiting_sessions{model="m",priority="HIGH"} 0.0',
            'outrider_router_wait_seconds_count{model="m",priority="MEDIUM"} 1.0',
            'outrider_router_tenant_sessions_total{outcome="admitted",tenant="*"} 1.0',
        )
        async with asyncio.timeout(60):
            text = ""
            while not all(line in text for line in wanted):
                text = await get(router.ports.admin, "/metrics")
        assert 'outrider_router_late_ratio{model="m",region="us"}' in text


async def test_what_home_has_no_room_for_goes_to_another_region(
    near: Replica, far: Replica
) -> None:
    async with running_router(near, far) as router:
        near.report(**FULL, **COST)
        async with asyncio.timeout(60):
            while (await router.replicas())["near"].sessions < 16:
                await asyncio.sleep(0.02)
        edge = router.edge()
        await edge.send(opening(1, priority=HIGH))
        sent = await far.hear("open")
        far.say(commit(sent.session))
        await edge.hear("commit")
        wanted = 'outrider_router_spilled_total{cause="full",home="us",region="eu"} 1.0'
        async with asyncio.timeout(60):
            while wanted not in await get(router.ports.admin, "/metrics"):
                await asyncio.sleep(0.02)
        bound = opening(2, priority=HIGH)
        bound.open.residency.append("us")
        await edge.send(bound)
        near.report(max_sessions=8, **COST)
        await near.hear("open")
