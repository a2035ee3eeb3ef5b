"""A mesh's router, as an operator asks it."""

from __future__ import annotations

import asyncio

from bench.harness.local_mesh import LocalMesh
from outrider.cli import operator
from outrider.rpc import make_channel
from outrider.tls import Role
from outrider.v1 import router_pb2, router_pb2_grpc

LIMIT_S = 200.0


class Router:
    """A mesh's router, asked by an operator."""

    def __init__(self, mesh: LocalMesh) -> None:
        tls = operator.of_mesh(mesh.state_dir)
        self._channel = make_channel(mesh.address("router"), tls=tls, role=Role.ROUTER)
        self._stub: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(
            self._channel
        )

    async def __aenter__(self) -> Router:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def latest_replica(self) -> str:
        """Where it sent the latest session."""
        answer = await self._stub.Explain(router_pb2.ExplainRequest(max_placements=1))
        return answer.placements[0].chosen.replica

    async def is_whole(self) -> None:
        """Return when all replicas serve."""

        async def are_ready() -> bool:
            listed = await self._stub.ListReplicas(router_pb2.ListReplicasRequest())
            states = {row.state for row in listed.replicas}
            return states == {router_pb2.REPLICA_STATE_READY}

        async with asyncio.timeout(LIMIT_S):
            while not await are_ready():
                await asyncio.sleep(0.02)
