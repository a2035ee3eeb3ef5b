"""A service that sends frames back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from outrider.rpc import incoming
from outrider.telemetry import tracing
from outrider.v1 import inference_pb2
from outrider.v1.inference_pb2_grpc import InferenceServiceServicer


class Echo(InferenceServiceServicer):
    """Sends frames back; remembers what it saw; fails when told to."""

    def __init__(self) -> None:
        self.traces: list[tuple[str, str]] = []
        self.error: Exception | None = None
        self.live_streams = 0

    async def Drain(
        self, request: inference_pb2.DrainRequest, context: Any
    ) -> inference_pb2.DrainResponse:
        return inference_pb2.DrainResponse()

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: Any
    ) -> inference_pb2.GetModelResponse:
        self.traces.append(tracing.current_context())
        if self.error is not None:
            raise self.error
        return inference_pb2.GetModelResponse(model="m")

    async def Generate(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        self.traces.append(tracing.current_context())
        self.live_streams += 1
        try:
            async for request in incoming(request_iterator):
                if self.error is not None:
                    raise self.error
                down = inference_pb2.SessionDown(session=request.frames[0].session)
                yield inference_pb2.GenerateResponse(frames=[down])
        finally:
            self.live_streams -= 1

    async def WatchLoad(
        self, request: inference_pb2.WatchLoadRequest, context: Any
    ) -> AsyncIterator[inference_pb2.WatchLoadResponse]:
        yield inference_pb2.WatchLoadResponse(max_sessions=1)

    async def WatchKv(
        self, request: inference_pb2.WatchKvRequest, context: Any
    ) -> AsyncIterator[inference_pb2.WatchKvResponse]:
        yield inference_pb2.WatchKvResponse()
