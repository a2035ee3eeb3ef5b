"""The gRPC service of a replica: its streams of sessions, and what routers watch."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import structlog

from outrider.errors import (
    CancelledError,
    DuplicateSessionError,
    MalformedFrameError,
    OutriderError,
    OverloadedError,
    UnavailableError,
)
from outrider.lru_map import LruMap
from outrider.rpc import Outbox, incoming, outgoing, received
from outrider.telemetry.refusals import RefusalLog
from outrider.v1 import inference_pb2
from outrider.v1.inference_pb2_grpc import InferenceServiceServicer
from services.inference.call_record import CallRecord
from services.inference.streaming import wire
from services.inference.streaming.block_feed import BlockFeed
from services.inference.streaming.sessions import LiveSession, SessionTable

log = structlog.get_logger()

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
_LOAD_INTERVAL_MS = 50
"""Between two load reports, where the router asks for no other interval."""
_LAST_REPORT_S = 0.5
"""Longest wait for routers to take the last load report."""
_MAX_ENDED = 4096
"""Ended sessions whose late frames are still recognised."""


class GenerateStream:
    """One Generate call: its frames in, its sessions' frames out, bounded both ways. Implements
    sessions.Peer."""

    def __init__(self, table: SessionTable, *, max_frames: int, max_sessions: int) -> None:
        """At most `max_frames` wait for the peer, at most `max_sessions` are open."""
        self.outbox: Outbox[wire.Down] = Outbox(max_frames)
        self._table = table
        self._max_sessions = max_sessions
        self._live: dict[int, LiveSession] = {}
        self._ended: LruMap[int, None] = LruMap(_MAX_ENDED)
        self._no_more_frames = False

    async def read(self, requests: AsyncIterable[inference_pb2.GenerateRequest]) -> None:
        """Take frames until the peer has no more; its sessions then run to their end.

        A frame without a usable session number ends the stream, and so does a defect of ours:
        otherwise the peer would wait for ever for frames to be taken.
        """
        try:
            async for frames in received(requests):
                for frame in frames:
                    if self.outbox.closed:
                        return
                    self.receive(frame)
        except OutriderError as error:
            self.close(error)
            return
        except Exception as error:
            log.exception("stream_unreadable")
            self.close(OutriderError(f"the stream broke with {type(error).__name__}; open another"))
            return
        self._no_more_frames = True
        self._close_if_done()

    def receive(self, frame: inference_pb2.SessionUp) -> None:
        """Take one frame; a fault in it ends its session. Raises MalformedFrameError."""
        if frame.session == 0:
            raise MalformedFrameError("a frame has no session number; number sessions from 1")
        try:
            self._take(frame)
        except OutriderError as error:
            self._refuse(frame.session, error)

    def send(self, frame: wire.Down) -> None:
        """Queue a frame; a peer that lets its outbox fill up loses the stream."""
        if self.outbox.closed:
            return
        try:
            self.outbox.put_nowait(frame)
        except OverloadedError as error:
            self.close(error)

    def ended(self, number: int) -> None:
        """Remember a number for the frames that crossed its session's last one."""
        self._live.pop(number, None)
        self._ended.put(number, None)
        self._close_if_done()

    def close(self, error: OutriderError | None = None) -> None:
        """End the stream, with a status if there is an error, and every session on it."""
        self.outbox.close(error)
        reason = error or CancelledError("the peer went away")
        for session in list(self._live.values()):
            self._table.abandon(session, reason)

    def _take(self, frame: inference_pb2.SessionUp) -> None:
        kind = frame.WhichOneof("kind")
        if kind == "open":
            self._open(frame.session, frame.open)
            return
        if kind == "keep_kv":
            self._table.keep_kv(frame.session, frame.keep_kv)
            return
        if kind not in ("draft", "cancel"):
            raise MalformedFrameError("a frame of no known kind; send open, draft or cancel")
        session = self._live.get(frame.session)
        if session is None:
            if frame.session not in self._ended:
                raise MalformedFrameError(f"session {frame.session} was never opened")
        elif kind == "draft":
            self._table.draft(session, frame.draft)
        else:
            self._table.cancel(session)

    def _open(self, number: int, frame: inference_pb2.OpenSession) -> None:
        if number in self._live or number in self._ended:
            raise DuplicateSessionError(
                f"session number {number} is taken on this stream; number every session once"
            )
        if len(self._live) >= self._max_sessions:
            raise OverloadedError(
                f"this stream carries {len(self._live)} sessions; open another stream",
                retry_delay_ms=100,
            )
        self._live[number] = self._table.open(self, number, frame)

    def _refuse(self, number: int, error: OutriderError) -> None:
        session = self._live.get(number)
        if session is not None:
            self._table.fail(session, error)
        else:
            self.send(wire.error_frame(number, error))
            self.ended(number)

    def _close_if_done(self) -> None:
        if self._no_more_frames and not self._live:
            self.outbox.close()


class InferenceService(InferenceServiceServicer):
    """Streams of sessions over one table."""

    def __init__(
        self,
        table: SessionTable,
        blocks: BlockFeed,
        record: CallRecord,
        *,
        awake_clock: Callable[[], float],
        max_frames: int,
        max_sessions: int,
    ) -> None:
        """The limits are those of one stream. `awake_clock` stops while this process does; it
        measures how long an engine call has lasted, for routers."""
        self._table = table
        self._record = record
        self._awake_clock = awake_clock
        self._blocks = blocks
        self._max_frames = max_frames
        self._max_sessions = max_sessions
        self._streams: set[GenerateStream] = set()
        self._closed = False
        self._watches: set[asyncio.Event] = set()
        """Of the load; set once the last report is written."""
        self._refused = RefusalLog("streams")

    @property
    def num_streams(self) -> int:
        """Generate calls being served."""
        return len(self._streams)

    async def Generate(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        if self._closed:
            raise UnavailableError("this replica is shutting down; open the session on another")
        stream = GenerateStream(
            self._table, max_frames=self._max_frames, max_sessions=self._max_sessions
        )
        self._streams.add(stream)
        reader = asyncio.create_task(stream.read(incoming(request_iterator)))
        try:
            parse = inference_pb2.GenerateResponse.FromString
            async for response in outgoing(stream.outbox, parse):
                yield response
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
        over = asyncio.Event()
        self._watches.add(over)
        try:
            async with aclosing(self._load_reports(request)) as reports:
                async for report in reports:
                    yield report
        finally:
            self._watches.discard(over)
            over.set()

    async def _load_reports(
        self, request: inference_pb2.WatchLoadRequest
    ) -> AsyncGenerator[inference_pb2.WatchLoadResponse, None]:
        """Until the service is closed, and the last report then."""
        clock = asyncio.get_running_loop().time
        interval_s = (request.min_interval_ms or _LOAD_INTERVAL_MS) / 1e3
        heartbeat_s = request.max_interval_ms / 1e3 or math.inf
        told: inference_pb2.WatchLoadResponse | None = None
        due_at = 0.0
        while True:
            is_last = self._closed
            changed = self._table.load_changed
            if self._table.load is not None:
                report = wire.load_response(
                    self._table.load,
                    self._table.tiers.counts,
                    draining=self._table.draining,
                    restarting=self._table.is_restarting,
                    running_call=self._record.longest(self._awake_clock()),
                )
                if told is None or clock() >= due_at or wire.is_news(report, told):
                    told, due_at = report, clock() + heartbeat_s
                    yield report
            if is_last:
                return
            if told is not None:
                # Changes gather meanwhile; the next report has the latest of all.
                await asyncio.sleep(interval_s)
            await _within(due_at - clock() if told is not None else math.inf, changed.wait())

    async def WatchKv(
        self, request: inference_pb2.WatchKvRequest, context: Any
    ) -> AsyncIterator[inference_pb2.WatchKvResponse]:
        async with aclosing(self._blocks.watch(request)) as responses:
            async for response in responses:
                yield response

    async def GetModel(
        self, request: inference_pb2.GetModelRequest, context: Any
    ) -> inference_pb2.GetModelResponse:
        return wire.model_response(self._table.contract, self._record)

    async def Drain(
        self, request: inference_pb2.DrainRequest, context: Any
    ) -> inference_pb2.DrainResponse:
        """No new sessions for a while; every router hears of it with the next load report."""
        self._table.set_drained(drained=not request.undo)
        if request.move and not request.undo:
            self._table.fail_all(
                UnavailableError("this replica is drained; open the session on another")
            )
        return inference_pb2.DrainResponse()

    async def close(self) -> None:
        """End every stream after its queued frames; sessions on it should be over. Streams of
        sessions end after the last load report: a router reads no more once one has ended, and that
        report says whether the replica will be back."""
        self._closed = True
        self._table.announce()
        watches = [over.wait() for over in self._watches]
        await _within(_LAST_REPORT_S, asyncio.gather(*watches))
        for stream in list(self._streams):
            stream.close()
        self._blocks.close()


async def _within(limit_s: float, waiting: Awaitable[object]) -> None:
    """Wait for at most `limit_s`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None if limit_s == math.inf else limit_s):
            await waiting
