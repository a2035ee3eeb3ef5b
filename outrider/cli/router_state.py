"""Models and replicas as a router sees them, in the shape that `--json` prints."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from outrider.errors import UnavailableError

if TYPE_CHECKING:
    from outrider.tls import Tls

State: TypeAlias = dict[str, Any]
"""As `outrider.mesh_state` makes it."""
_TIMEOUT_S: Final = 5.0


async def ask(address: str, tls: Tls) -> State:
    """Models and replicas as the router at an address sees them. Raises UnavailableError."""
    # Imported here: `outrider --help` does without.
    import grpc.aio

    from outrider.mesh_state import mesh_as_dict
    from outrider.rpc import from_rpc_error, make_channel
    from outrider.tls import Role
    from outrider.v1 import router_pb2, router_pb2_grpc

    async with make_channel(address, tls=tls, role=Role.ROUTER) as channel:
        stub: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(channel)
        try:
            replicas, models = await asyncio.gather(
                stub.ListReplicas(router_pb2.ListReplicasRequest(), timeout=_TIMEOUT_S),
                stub.ListModels(router_pb2.ListModelsRequest(), timeout=_TIMEOUT_S),
            )
        except grpc.aio.AioRpcError as error:
            why = from_rpc_error(error).message
            raise UnavailableError(f"the router at {address} does not answer: {why}") from error
    return mesh_as_dict(models, replicas)
