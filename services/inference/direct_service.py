"""The gRPC service of a replica for edges: streams of commits, of sessions that routers opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, Final

import structlog

from outrider.errors import (
    CancelledError,
    DuplicateSessionError,
    MalformedFrameError,
    OutriderError,
    OverloadedError,
    UnavailableError,
)
from outrider.rpc import Outbox, caller_of, incoming, outgoing, received
from outrider.telemetry.refusals import RefusalLog
from outrider.tls import PLAINTEXT, Tls
from outrider.v1 import direct_pb2, inference_pb2
from outrider.v1.direct_pb2_grpc import DirectServiceServicer
from services.inference.streaming import wire
from services.inference.streaming.sessions import LiveSession, SessionTable

log = structlog.get_logger()

MAX_STREAMS: Final = 64
"""Edge processes that one replica sends commits to; those of more go through their routers."""
FIRST_ATTACH_S: Final = 10.0
"""A stream that has attached nothing for so long is ended."""


class DirectStream:
    """One Attach call. Implements sessions.Peer."""

    def __init__(
        self, table: SessionTable, edge: str, *, max_frames: int, max_sessions: int
    ) -> None:
        """At most `max_frames` wait for the edge, at most `max_sessions` are attached."""
        self.outbox: Outbox[wire.Down] = Outbox(max_frames, max_sessions)
        self.attached_any = asyncio.Event()
        self._table = table
        self._edge = edge
        self._max_sessions = max_sessions
        self._live: dict[int, LiveSession] = {}
        self._last_number = 0

    async def read(self, requests: AsyncIterable[direct_pb2.AttachRequest]) -> None:
        """Take frames until the edge has no more, which ends the stream, or the stream has ended:
        what is attached then would lose its commits."""
        why: OutriderError = CancelledError("the edge went away")
        try:
            async for frames in received(requests):
                for frame in frames:
                    if self.outbox.closed:
                        self.close()
                        return
                    self._receive(frame)
        except OutriderError as error:
            why = error
        except Exception as error:
            log.exception("stream_unreadable")
            why = OutriderError(f"the stream broke with {type(error).__name__}; open another")
        self.close(why)

    def send(self, frame: wire.Down) -> None:
        """Queue a commit; an edge that lets its outbox fill up loses the stream, and all sessions
        whose commits went there end."""
        if not self.outbox.offer(frame):
            self.close(OverloadedError("the edge does not read its commits"))

    def ended(self, number: int) -> None:
        """A session is over; its last frame goes through its router."""
        self._live.pop(number, None)

    def close(self, error: OutriderError | None = None) -> None:
        """End the stream. Sessions whose commits went here end too, as UNAVAILABLE: their edges
        alone know which commits came, and open them again."""
        self.outbox.close(error)
        sessions = list(self._live.values())
        self._live.clear()
        for session in sessions:
            if session.direct is not None and session.direct.detach():
                lost = "the stream of its commits to the edge was lost; open it again"
                self._table.fail(session, UnavailableError(lost))

    def _receive(self, frame: inference_pb2.SessionUp) -> None:
        """Raises MalformedFrameError."""
        number, kind = frame.session, frame.WhichOneof("kind")
        if number == 0:
            raise MalformedFrameError("a frame has no session number; number sessions from 1")
        session = self._live.get(number)
        if kind == "attach":
            try:
                self._attach(number, frame.attach.ticket)
            except OutriderError as error:
                self.outbox.offer(wire.error_frame(number, error), last=True)
        elif kind != "draft":
            raise MalformedFrameError("a frame is neither attach nor draft; send it to a router")
        elif session is not None:
            try:
                self._table.draft(session, frame.draft)
            except OutriderError as error:
                self._table.fail(session, error)

    def _attach(self, number: int, ticket: bytes) -> None:
        if number <= self._last_number:
            raise DuplicateSessionError(
                f"session number {number} is taken on this stream; number sessions upwards"
            )
        if len(self._live) >= self._max_sessions:
            raise OverloadedError(f"this stream carries {len(self._live)} sessions")
        self._last_number = number
        session = self._table.direct_paths.attach(ticket, self._edge, self, number)
        # Its router is told, which may lose its stream by that: then the session is over.
        if session.direct is not None and session.direct.number == number:
            self._live[number] = session
        self.attached_any.set()


class DirectService(DirectServiceServicer):
    """Streams to edges, over the sessions of one table."""

    def __init__(
        self, table: SessionTable, *, max_frames: int, max_sessions: int, tls: Tls = PLAINTEXT
    ) -> None:
        """The bounds are those of one stream."""
        self._table = table
        self._max_frames = max_frames
        self._max_sessions = max_sessions
        self._tls = tls
        self._streams: set[DirectStream] = set()
        self._closed = False
        self._refused = RefusalLog("direct streams")

    @property
    def num_streams(self) -> int:
        """Attach calls being served."""
        return len(self._streams)

    async def Attach(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[direct_pb2.AttachResponse]:
        caller = caller_of(context, self._tls)
        try:
            async for response in self._serve(request_iterator, str(caller or "")):
                yield response
        except OutriderError as error:
            self._refused.note(error.reason)
            raise

    async def _serve(
        self, requests: AsyncIterable[direct_pb2.AttachRequest], edge: str
    ) -> AsyncIterator[direct_pb2.AttachResponse]:
        if self._closed:
            raise UnavailableError("this replica is shutting down")
        if len(self._streams) >= MAX_STREAMS:
            raise OverloadedError(f"this replica sends commits to {MAX_STREAMS} edges already")
        stream = DirectStream(
            self._table, edge, max_frames=self._max_frames, max_sessions=self._max_sessions
        )
        self._streams.add(stream)
        jobs = [
            asyncio.create_task(stream.read(incoming(requests))),
            asyncio.create_task(_close_unused(stream)),
        ]
        try:
            async for response in outgoing(stream.outbox, direct_pb2.AttachResponse.FromString):
                yield response
        finally:
            self._streams.discard(stream)
            stream.close()
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        for stream in list(self._streams):
            stream.close()


async def _close_unused(stream: DirectStream) -> None:
    try:
        async with asyncio.timeout(FIRST_ATTACH_S):
            await stream.attached_any.wait()
    except TimeoutError:
        stream.close(UnavailableError("the stream attached no session; open one with a ticket"))
