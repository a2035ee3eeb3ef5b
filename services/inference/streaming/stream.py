"""One peer's stream: its frames in, its sessions' frames out, bounded both ways."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable

import structlog

from outrider.errors import (
    CancelledError,
    DuplicateSessionError,
    MalformedFrameError,
    OutriderError,
    OverloadedError,
)
from outrider.rpc import Outbox
from outrider.v1 import inference_pb2
from services.inference.streaming import wire
from services.inference.streaming.sessions import LiveSession, SessionTable

log = structlog.get_logger()

_MAX_ENDED = 4096
"""Ended sessions whose late frames are still recognised."""


class Stream:
    """Sessions of one Generate call. Implements sessions.Peer."""

    def __init__(self, table: SessionTable, *, max_frames: int, max_sessions: int) -> None:
        """At most `max_frames` wait for the peer, at most `max_sessions` are open."""
        self.outbox: Outbox[inference_pb2.SessionDown] = Outbox(max_frames)
        self._table = table
        self._max_sessions = max_sessions
        self._live: dict[int, LiveSession] = {}
        self._ended: set[int] = set()
        self._ended_order: deque[int] = deque()
        self._no_more_frames = False

    async def read(self, frames: AsyncIterable[inference_pb2.GenerateRequest]) -> None:
        """Take frames until the peer has no more; its sessions then run to their end.

        A frame without a usable session number ends the stream, and so does a defect of ours:
        a peer whose frames nobody takes would wait for ever.
        """
        try:
            async for request in frames:
                if self.outbox.closed:
                    return
                self.receive(request.frame)
        except OutriderError as error:
            self.close(error)
            return
        except Exception as error:
            log.exception("a stream cannot be read")
            self.close(OutriderError(f"the stream broke with {type(error).__name__}; open another"))
            return
        self._no_more_frames = True
        self._close_if_done()

    def receive(self, frame: inference_pb2.SessionUp) -> None:
        """Take one frame; what is wrong with it ends its session. Raises MalformedFrameError."""
        if frame.session == 0:
            raise MalformedFrameError("a frame has no session number; number sessions from 1")
        try:
            self._take(frame)
        except OutriderError as error:
            self._refuse(frame.session, error)

    def send(self, frame: inference_pb2.SessionDown) -> None:
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
        self._ended.add(number)
        self._ended_order.append(number)
        if len(self._ended_order) > _MAX_ENDED:
            self._ended.discard(self._ended_order.popleft())
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
        if kind is None:
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
