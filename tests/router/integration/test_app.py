"""The router as a process: its stop, its ports, its metrics, nothing left behind."""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.testing import free_tcp_port, leak_check
from services.router.fleet.entries import ReplicaConfig
from tests.router.relay.mesh import done, opening
from tests.router.replica import (
    Edge,
    Replica,
    RouterUnderTest,
    running_replicas,
    running_router,
    started,
)

WHOLE_SERVER = health_pb2.HealthCheckRequest()


async def test_a_stopping_router_lets_running_sessions_finish() -> None:
    near = Replica("near")

    async def finish(router: RouterUnderTest, edge: Edge, number: int) -> None:
        async for answer in health_pb2_grpc.HealthStub(router.channel).Watch(WHOLE_SERVER):
            if answer.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                break
        await edge.send(opening(2))
        assert (await edge.hear("error")).error.reason == "DRAINING"
        near.say(done(number))
        await edge.hear("done")
        assert await edge.next() is None

    async with leak_check(), running_replicas(near):
        async with running_router(near, drain_s=30.0) as router:
            edge = router.edge()
            number = await started(edge, near)
            finishing = asyncio.create_task(finish(router, edge, number))
        await finishing


async def test_the_admin_port_tells_readiness_and_metrics(near: Replica) -> None:
    unreachable = ReplicaConfig("gone", "us", f"127.0.0.1:{free_tcp_port()}")
    async with running_router(near) as router:
        await started(router.edge(), near)
        assert "1 READY" in await get(router.ports.admin, "/ready")
        async with asyncio.timeout(60):  # the next tick brings gauges up to date
            while "outrider_router_sessions 1.0" not in await get(router.ports.admin, "/metrics"):
                await asyncio.sleep(0.02)
        metrics = await get(router.ports.admin, "/metrics")
        assert "outrider_router_placements_total" in metrics
        assert 'outrider_router_replicas{state="ready"} 1.0' in metrics
    async with running_router(replicas=(unreachable,)) as router:
        assert "503" in await get(router.ports.admin, "/ready")


async def get(port: int, path: str) -> str:
    """What the admin port answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()
