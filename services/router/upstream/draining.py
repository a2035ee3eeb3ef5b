"""Asks one replica, for an operator, to stop taking new sessions or to take them again."""

from __future__ import annotations

from typing import Final

import grpc.aio

from outrider.errors import UnavailableError
from outrider.rpc import from_rpc_error, make_channel
from outrider.tls import Role, Tls
from outrider.v1 import inference_pb2, inference_pb2_grpc
from services.router.fleet.replica import Replica

_TIMEOUT_S: Final = 5.0


async def drain_replica(replica: Replica, asked: inference_pb2.DrainRequest, tls: Tls) -> None:
    """On a connection of its own: operators ask seldom. Raises UnavailableError if it does not
    answer."""
    channel = make_channel(
        replica.address, tls=tls, role=Role.INFERENCE, region=replica.region, max_message_bytes=4096
    )
    async with channel:
        stub: inference_pb2_grpc.InferenceServiceAsyncStub
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        try:
            await stub.Drain(asked, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            why = from_rpc_error(error).message
            raise UnavailableError(f"the replica {replica.name} does not answer: {why}") from error
