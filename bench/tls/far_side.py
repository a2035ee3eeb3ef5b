"""The other process: the same echo with certificates and without, until its input ends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import uvloop

from outrider.rpc import bind, make_server
from outrider.tls import PLAINTEXT, Role, Tls
from outrider.tls.development import settings
from outrider.v1 import inference_pb2, inference_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class Echo(inference_pb2_grpc.InferenceServiceServicer):
    """Answers each session frame with one as small."""

    async def Generate(
        self, request_iterator: AsyncIterator[inference_pb2.GenerateRequest], context: Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        async for request in request_iterator:
            down = inference_pb2.SessionDown(session=request.frame.session)
            yield inference_pb2.GenerateResponse(frame=down)

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: Context
    ) -> inference_pb2.GetModelResponse:
        return inference_pb2.GetModelResponse(model="m")

    async def WatchLoad(
        self, request: inference_pb2.WatchLoadRequest, context: Context
    ) -> AsyncIterator[inference_pb2.WatchLoadResponse]:
        yield inference_pb2.WatchLoadResponse()

    async def WatchKv(
        self, request: inference_pb2.WatchKvRequest, context: Context
    ) -> AsyncIterator[inference_pb2.WatchKvResponse]:
        yield inference_pb2.WatchKvResponse()


async def main() -> None:
    tls = Tls.open(settings(Path(sys.argv[1]), "server"), Role.INFERENCE)
    servers = []
    for certificates in (PLAINTEXT, tls):
        server = make_server(certificates)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(Echo(), server)
        print(bind(server, "127.0.0.1", 0, certificates), flush=True)
        await server.start()
        servers.append(server)
    async with tls.watched():
        await asyncio.to_thread(sys.stdin.read)
    for server in servers:
        await server.stop(None)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
