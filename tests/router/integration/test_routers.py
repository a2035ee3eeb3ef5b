"""Several routers before the same replicas share nothing but what these report."""

from __future__ import annotations

import asyncio

from outrider.testing import eventually, leak_check
from outrider.v1 import router_pb2
from tests.router.relay.mesh import opening
from tests.router.replica import Replica, routed, running_replicas, running_router


async def test_each_router_learns_of_all_sessions_by_the_replicas_reports() -> None:
    replica = Replica("a")
    async with (
        leak_check(),
        running_replicas(replica),
        running_router(replica) as first,
        running_router(replica, region="eu") as second,
    ):
        for router in (first, second):
            await router.state_of("a", router_pb2.REPLICA_STATE_READY)
        for _ in (first, second):  # a report for each of them
            replica.report(running_sessions=2, max_sessions=64, fixed_ms=10.0, row_ms=1.0)
        for router in (first, second):
            while (await router.replicas())["a"].sessions != 2:
                await asyncio.sleep(0.02)
        said = [await r.stub.GetRouter(router_pb2.GetRouterRequest()) for r in (first, second)]
        assert [(it.region, it.serving) for it in said] == [("us", True), ("eu", True)]


async def test_a_router_that_stops_takes_nothing_from_the_other() -> None:
    replica = Replica("a")
    async with routed(replica) as staying:
        edge = staying.edge()
        async with running_router(replica) as leaving:
            await leaving.edge().send(opening(1))
            await replica.hear("open")
            await edge.send(opening(1))
            await replica.hear("open")
            await eventually(lambda: replica.num_streams == 2)
        await eventually(lambda: replica.num_streams == 1)
        await edge.send(opening(2))
        await replica.hear("open")
        assert (await staying.replicas())["a"].state == router_pb2.REPLICA_STATE_READY
