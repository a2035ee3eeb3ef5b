"""The gRPC face of a replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any

from outrider.errors import OutriderError, UnavailableError
from outrider.rpc import incoming
from outrider.telemetry.refusals import RefusalLog
from outrider.v1 import inference_pb2
from outrider.v1.inference_pb2_grpc import InferenceServiceServicer
from services.inference.streaming import wire
from services.inference.streaming.block_feed import BlockFeed
from services.inference.streaming.sessions import SessionTable
from services.inference.streaming.stream import Stream

_LOAD_INTERVAL_MS = 50


class InferenceService(InferenceServiceServicer):
    """Streams of sessions over one table."""

    def __init__(
        self, table: SessionTable, blocks: BlockFeed, *, max_frames: int, max_sessions: int
    ) -> None:
        """The bounds are those of one stream."""
        self._table = table
        self._blocks = blocks
        self._max_frames = max_frames
        self._max_sessions = max_sessions
        self._streams: set[Stream] = set()
        self._closed = False
        self._refused = RefusalLog("streams")

    @property
    def num_streams(self) -> int:
        """Generate calls being served."""
        return len(self._streams)

    async def Generate(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        if self._closed:
            raise UnavailableError("this replica is shutting down; go elsewhere")
        stream = Stream(self._table, max_frames=self._max_frames, max_sessions=self._max_sessions)
        self._streams.add(stream)
        reader = asyncio.create_task(stream.read(incoming(request_iterator)))
        try:
            async for frame in stream.outbox:
                yield inference_pb2.GenerateResponse(frame=frame)
        except OutriderError as error:
            self._refused.note(error.reason)
            raise
        finally:
            self._streams.discard(stream)
            stream.close()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def WatchLoad(
        self, request: inference_pb2.WatchLoadRequest, context: Any
    ) -> AsyncIterator[inference_pb2.WatchLoadResponse]:
        interval_s = (request.min_interval_ms or _LOAD_INTERVAL_MS) / 1e3
        longest_s = max(0.0, request.max_interval_ms / 1e3 - interval_s) or None
        last: inference_pb2.WatchLoadResponse | None = None
        while not self._closed:
            changed = self._table.load_changed
            if self._table.load is not None:
                report = wire.load_response(self._table.load, draining=self._table.draining)
                if report != last:
                    last = report
                    yield report
                    # Changes gather meanwhile; the next report has the latest of all.
                    await asyncio.sleep(interval_s)
                    continue
            if not await _within(longest_s, changed.wait()):
                last = None  # time for a heartbeat

    async def WatchKv(
        self, request: inference_pb2.WatchKvRequest, context: Any
    ) -> AsyncIterator[inference_pb2.WatchKvResponse]:
        async with aclosing(self._blocks.watch(request)) as responses:
            async for response in responses:
                yield response

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: Any
    ) -> inference_pb2.GetModelResponse:
        return wire.model_response(self._table.contract)

    def close(self) -> None:
        """End every stream after what is queued for it; sessions on it should be over."""
        self._closed = True
        for stream in list(self._streams):
            stream.close()
        self._blocks.close()
        self._table.announce()


async def _within(limit_s: float | None, waiting: Awaitable[object]) -> bool:
    """Wait for at most `limit_s`, for ever without one; whether what was waited for came."""
    try:
        async with asyncio.timeout(limit_s):
            await waiting
    except TimeoutError:
        return False
    return True
