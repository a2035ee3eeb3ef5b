"""One chat: its events as they come, and its result."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Final
from uuid import uuid4

from outrider.client import wire
from outrider.client.events import ChatResult, Event, Interrupted, Resumed
from outrider.client.link import Link, spread
from outrider.client.protocol import process_name
from outrider.client.recovery import Recovery, RecoveryState
from outrider.client.stopwatch import Stopwatch
from outrider.client.streams import Connection
from outrider.client.transcript import Transcript
from outrider.codec.frames import FrameDecoder
from outrider.errors import (
    CancelledError,
    DeadlineError,
    DrainingError,
    InvalidRequestError,
    OutriderError,
    OverloadedError,
    UnavailableError,
)
from outrider.models.chat import Message
from outrider.models.tools import ToolCall
from outrider.reply_parsing.events import ReplyEvent
from outrider.reply_parsing.parser import ReadReply, ReplyParser, ReplyReader
from outrider.session.client import Accepted, Committed, Done
from outrider.session.client_wire import read
from outrider.session.runs import UNKNOWN_RUN, next_run
from outrider.session.types import TokenLogprobs
from outrider.telemetry import names
from outrider.telemetry.tracing import Span, start_span

MAX_UNREAD_EVENTS: Final = 65_536
_CANCEL_LIMIT_S: Final = 2.0
"""How long a cancelled chat without a connection tries to send the cancellation."""


class Chat(AsyncIterator[Event]):
    """A running chat. Enter it to send the request, and iterate over it for the events.

    Leaving the context before the end cancels the chat. Iteration stops after the last event,
    `Done`, and raises the OutriderError that ended the chat, if one did. A chat whose connection is
    lost continues by itself, within the client's ReconnectPolicy; the events `Interrupted` and
    `Resumed` report it.
    """

    def __init__(
        self,
        link: Link,
        messages: tuple[Message, ...],
        options: wire.ChatOptions,
        credential: wire.Credential,
        resume_token: str = "",
    ) -> None:
        self._link = link
        self._credential = credential
        self._messages = messages
        # One key for all times it is sent: it runs once, whatever is lost.
        self._options = replace(options, idempotency_key=options.idempotency_key or uuid4().hex)
        self._token = resume_token
        self._run = UNKNOWN_RUN
        """Number of the newest run."""
        self._edge = ""
        self._recovery = Recovery(link.policy)
        self._retry: asyncio.Task[None] | None = None
        self._limit: asyncio.Timeout | None = None
        self._connection: Connection | None = None
        self._is_accepted = self._is_cancelled = False
        self._decoder = FrameDecoder()
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._transcript = Transcript()
        self._stream_id = -1
        self._span: Span | None = None
        self._error: OutriderError | None = None
        self._entered = self._ended = False
        self._stopwatch = Stopwatch()
        self._parser: ReplyParser | None = None
        """Parser of the reply in a chat with tools, set once the edge accepts it."""
        self._reader = ReplyReader()

    @property
    def resume_token(self) -> str:
        """Token for `Client.resume`. It changes each time the chat is resumed; empty before
        Accepted."""
        return self._token

    async def __aenter__(self) -> Chat:
        if self._entered:
            raise InvalidRequestError("a chat is sent once; make another one with client.chat")
        self._entered = True
        span = self._span = start_span(names.SPAN_CLIENT_CHAT)
        try:
            wire.request_frame(self._messages, self._options, span.context)  # fails here, if at all
            self._stopwatch.sent_at = self._now()
            connection = await self._link.usable()
        except OutriderError as error:
            self._end(error)
            raise
        self._send_or_retry(connection)
        if self._error is not None:
            raise self._error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave_stream()
        self._end(None)

    def __aiter__(self) -> Chat:
        return self

    async def __anext__(self) -> Event:
        if not self._entered:
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
        """Ask the edge to stop; the events end with a `Done` of reason "cancelled", or with a
        CancelledError where the edge cannot be reached for a while."""
        self._is_cancelled = self._entered
        if self._connection is not None:
            self._connection.send(self._stream_id, wire.CANCEL)
        elif self._limit is not None and not self._limit.expired():
            self._limit.reschedule(self._due())

    async def result(self) -> ChatResult:
        """Wait for the whole reply, skipping events that were not read. Raises the error that ended
        the chat."""
        async for _ in self:
            pass
        done = self._transcript.done
        if done is None:
            raise UnavailableError("the chat was left before it ended; there is no result")
        text = self._transcript.committed
        read = ReadReply(text, "", ()) if self._parser is None else self._reader.reply(text)
        return ChatResult(
            text=text,
            ids=tuple(self._transcript.ids),
            finish_reason=done.finish_reason,
            usage=done.usage,
            timings=self._stopwatch.timings(len(self._transcript.ids)),
            replica_timings=done.replica_timings,
            edge_timings=done.edge_timings,
            num_retractions=self._transcript.num_retractions,
            erased_chars=self._transcript.erased_chars,
            region=done.region,
            replica=done.replica,
            speculation_stats=done.speculation_stats,
            inexact=self._transcript.inexact,
            logprobs=self._logprobs(),
            content=read.content,
            reasoning=read.reasoning,
            tool_calls=tuple(ToolCall(it.id, it.name, it.arguments) for it in read.calls),
            request_id=self._transcript.request_id,
            model=self._transcript.model,
            num_moves=done.num_moves,
        )

    def _logprobs(self) -> tuple[TokenLogprobs | None, ...]:
        known = self._transcript.logprobs
        return tuple(known) if any(known) else ()

    def received(self, data: bytes, end_stream: bool) -> None:
        """Called by the connection with what the edge sent."""
        try:
            for payload in self._decoder.feed(data):
                self._take(read(payload))
            if end_stream and self._transcript.done is None:
                raise UnavailableError("the edge ended the chat before it was done; send it again")
        except OutriderError as error:
            self._failed(error, cut_off=False)

    def failed(self, error: OutriderError) -> None:
        """Called by the connection when the stream is cut off."""
        self._failed(error, cut_off=True)

    def _send(self, connection: Connection) -> None:
        """Send the request, from where the chat has got to if it was sent before."""
        self._decoder = FrameDecoder()
        self._stream_id = connection.open(self, self._frame())
        self._connection = connection
        self._recovery.sent()
        if self._is_cancelled:
            connection.send(self._stream_id, wire.CANCEL)

    def _frame(self) -> bytes:
        span = self._span.context if self._span else ("", "")
        credential = self._credential
        run = self._run = next_run(self._run, time.time())
        if not self._token and self._recovery.cut_at is None:
            nothing = wire.NOTHING
            return wire.request_frame(self._messages, self._options, span, nothing, credential, run)
        options = self._options
        has = self._transcript
        if options.deadline_ms:
            left_ms = options.deadline_ms - round((self._now() - self._stopwatch.sent_at) * 1000)
            options = replace(options, deadline_ms=max(1, left_ms))
        progress = wire.Progress(
            self._token,
            has.ids,
            len(has.committed),
            has.model_identity,
            has.template_date,
        )
        return wire.request_frame(self._messages, options, span, progress, credential, run)

    def _failed(self, error: OutriderError, *, cut_off: bool) -> None:
        if self._ended:
            return
        if isinstance(error, DrainingError) and self._connection is not None:
            self._connection.is_leaving = True
        self._leave_stream()
        was_running = self._recovery.state is RecoveryState.RUNNING
        delay_s = None
        if not self._link.is_closed:
            delay_s = self._recovery.failed(
                error,
                self._now(),
                cut_off=cut_off,
                has_tokens=bool(self._transcript.ids),
                spread=spread(),
            )
        if delay_s is None:
            self._over(error)
            return
        if was_running:
            self._push(Interrupted(error.message))
        self._retry = asyncio.create_task(self._try_again(delay_s))

    async def _try_again(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout_at(self._due()) as self._limit:
                await asyncio.sleep(delay_s)
                connection = await self._link.usable()
        except TimeoutError:
            passed = "it was cancelled" if self._is_cancelled else "its deadline passed"
            kind = CancelledError if self._is_cancelled else DeadlineError
            self._over(kind(f"the chat was cut off, and {passed} before the edge was reached"))
        except OutriderError as error:
            self._over(error)
        except Exception as defect:
            # Whoever reads would wait for ever.
            self._over(OutriderError(f"the client failed to reconnect: {defect!r}"))
        else:
            self._send_or_retry(connection)
        finally:
            self._limit = None

    def _send_or_retry(self, connection: Connection) -> None:
        try:
            self._send(connection)
        except OutriderError as error:
            # Lost since it was handed out: another try, while there is time.
            self._failed(error, cut_off=True)

    def _due(self) -> float | None:
        """When a chat that is cut off has to be over; None: no sooner than its recovery says."""
        times = [self._stopwatch.sent_at + ms / 1000] if (ms := self._options.deadline_ms) else []
        if self._is_cancelled:
            times.append(self._now() + _CANCEL_LIMIT_S)
        return min(times, default=None)

    def _over(self, error: OutriderError) -> None:
        self._error = error
        self._end(error)

    def _leave_stream(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop(self._stream_id)

    def _push(self, event: Event) -> None:
        self._transcript.apply(event)
        self._events.append(event)
        self._arrived.set()

    def _accept(self, event: Accepted) -> None:
        if self._token and self._connection is not None:
            # Held by now, so the edge may forget the one before.
            self._connection.send(self._stream_id, wire.ACKNOWLEDGE)
        self._token = event.resume_token
        if self._connection is not None:
            self._connection.process_name = process_name(event.resume_token)
        self._edge = event.edge
        if not self._is_accepted:
            self._is_accepted = True
            # Whoever goes on with it must not do so with another model.
            self._options = replace(self._options, model=event.model)
            if event.reply_format is not None:
                self._parser = ReplyParser(event.reply_format, event.request_id)
            self._push(event)

    def _read(self, events: Iterable[ReplyEvent]) -> None:
        for event in events:
            self._reader.take(event)
            self._push(event)

    def _take(self, event: Event) -> None:
        if len(self._events) >= MAX_UNREAD_EVENTS:
            raise OverloadedError(f"{MAX_UNREAD_EVENTS} events of the chat were not read")
        now = self._now()
        if isinstance(event, Accepted):
            self._accept(event)
            return
        cut_at = self._recovery.cut_at
        if self._recovery.heard() and cut_at is not None:
            self._push(Resumed(self._edge, (now - cut_at) * 1000))
        if isinstance(event, Done) and self._parser is not None:
            self._read(self._parser.finish())
        self._push(event)
        if isinstance(event, Committed) and self._parser is not None:
            self._read(self._parser.push(event.text))
        self._stopwatch.saw(event, self._transcript, now)
        if isinstance(event, Committed):
            self._recovery.progressed()
        if isinstance(event, Done):
            self._end(None)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _end(self, error: OutriderError | None) -> None:
        self._ended = True
        self._recovery.end()
        if self._retry is not None and self._retry is not asyncio.current_task():
            self._retry.cancel()
        if self._span is not None:
            self._span.end(error)
            self._span = None
        self._arrived.set()
