"""One chat: its events as they come, and its result."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final

from outrider.client import wire
from outrider.client.connection import ClientConnection
from outrider.client.events import (
    ChatResult,
    Committed,
    Done,
    Event,
    Provisional,
    Timings,
)
from outrider.client.transcript import Transcript
from outrider.codec.frames import FrameDecoder
from outrider.errors import InvalidRequestError, OutriderError, OverloadedError, UnavailableError
from outrider.models.chat import Message
from outrider.telemetry import names
from outrider.telemetry.tracing import Span, start_span

MAX_UNREAD_EVENTS: Final = 65_536


class Chat(AsyncIterator[Event]):
    """A chat under way. Enter it to send the request, iterate over it for the events.

    Leaving the context before the end cancels the chat. Iteration raises the OutriderError that
    ended the chat; after the last event, `Done`, it stops.
    """

    def __init__(
        self, connection: ClientConnection, messages: tuple[Message, ...], options: wire.ChatOptions
    ) -> None:
        self._connection = connection
        self._messages = messages
        self._options = options
        self._decoder = FrameDecoder()
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._transcript = Transcript()
        self._stream_id: int | None = None
        self._span: Span | None = None
        self._error: OutriderError | None = None
        self._ended = False
        self._sent_at = self._ended_at = 0.0
        self._provisional_at: float | None = None
        self._committed_at: float | None = None

    async def __aenter__(self) -> Chat:
        if self._stream_id is not None:
            raise InvalidRequestError("a chat is sent once; make another one with client.chat")
        span = self._span = start_span(names.SPAN_CLIENT_CHAT)
        try:
            frame = wire.request_frame(self._messages, self._options, span.context)
            self._sent_at = asyncio.get_running_loop().time()
            self._stream_id = self._connection.open(self, frame)
        except OutriderError as error:
            span.end(error)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stream_id is not None:
            self._connection.drop(self._stream_id)
        self._end(None)

    def __aiter__(self) -> Chat:
        return self

    async def __anext__(self) -> Event:
        if self._stream_id is None:
            raise InvalidRequestError(
                "the chat was not sent yet; enter it: async with client.chat(...) as chat"
            )
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.popleft()

    def cancel(self) -> None:
        """Ask the edge to stop; the events end with a `Done` of reason "cancelled"."""
        if self._stream_id is not None:
            self._connection.send(self._stream_id, wire.CANCEL)

    async def result(self) -> ChatResult:
        """The whole reply; events not yet read are passed over. Raises what ended the chat."""
        async for _ in self:
            pass
        done = self._transcript.done
        if done is None:
            raise UnavailableError("the chat was left before it ended; there is no result")
        return ChatResult(
            text=self._transcript.committed,
            ids=tuple(self._transcript.ids),
            finish_reason=done.finish_reason,
            usage=done.usage,
            timings=self._timings(),
            replica_timings=done.replica_timings,
            edge_timings=done.edge_timings,
            num_retractions=self._transcript.num_retractions,
            erased_chars=self._transcript.erased_chars,
            region=done.region,
            replica=done.replica,
            lossy=tuple(self._transcript.lossy),
        )

    def received(self, data: bytes, end_stream: bool) -> None:
        """Called by the connection with what the edge sent."""
        try:
            for payload in self._decoder.feed(data):
                self._take(wire.read(payload))
            if end_stream and self._transcript.done is None:
                raise UnavailableError("the edge ended the chat before it was done; send it again")
        except OutriderError as error:
            self.failed(error)

    def failed(self, error: OutriderError) -> None:
        """Called by the connection when the stream is cut off."""
        if self._transcript.done is None and self._error is None:
            self._error = error
            self._end(error)
            if self._stream_id is not None:
                self._connection.drop(self._stream_id)

    def _take(self, event: Event) -> None:
        if len(self._events) >= MAX_UNREAD_EVENTS:
            raise OverloadedError(f"{MAX_UNREAD_EVENTS} events of the chat were not read")
        self._transcript.apply(event)
        self._events.append(event)
        now = asyncio.get_running_loop().time()
        if isinstance(event, Provisional) and self._provisional_at is None:
            self._provisional_at = now
        if isinstance(event, Committed) and event.ids and self._committed_at is None:
            self._committed_at = now
        if isinstance(event, Done):
            self._ended_at = now
            self._end(None)
        self._arrived.set()

    def _end(self, error: OutriderError | None) -> None:
        self._ended = True
        if self._span is not None:
            self._span.end(error)
            self._span = None
        self._arrived.set()

    def _timings(self) -> Timings:
        first, num_after_first = self._committed_at, len(self._transcript.ids) - 1
        rate = 0.0
        if first is not None and num_after_first > 0 and self._ended_at > first:
            rate = num_after_first / (self._ended_at - first)
        return Timings(
            provisional_ttft_ms=self._since_sent(self._provisional_at),
            committed_ttft_ms=self._since_sent(first),
            total_ms=(self._ended_at - self._sent_at) * 1000,
            tokens_per_s=rate,
        )

    def _since_sent(self, at: float | None) -> float | None:
        return None if at is None else (at - self._sent_at) * 1000
