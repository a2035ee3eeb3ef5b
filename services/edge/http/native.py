"""The native protocol over HTTP, for clients that QUIC does not reach: each of its streams is a
request, whose body and answer may flow at the same time. Pages of browsers, which send a body whole
before they read its answer, cancel a chat by a further stream that resumes it first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from outrider.client.protocol import HTTP_FRAMES, HTTP_PATH
from outrider.errors import OverloadedError
from outrider.telemetry.logs import failure_place
from services.edge.chat.answer_ahead import AnswerAhead
from services.edge.chat.typeahead import end_typing
from services.edge.http.exchange import ClientLeft, Exchange
from services.edge.limits.quotas import Count, Rate, too_many
from services.edge.quic.streams import EdgeStream, Transport


def is_stream(exchange: Exchange) -> bool:
    """Whether a request opens a stream, and who asks is for its first frame to say."""
    scope = exchange.scope
    is_request = scope["method"] == "POST" and scope["path"] == HTTP_PATH
    return is_request and exchange.media_type == HTTP_FRAMES


async def serve_stream(exchange: Exchange) -> None:
    """Serve one stream. Its own errors are frames; raises OutriderError where there is none."""
    exchange.check_media_type(HTTP_FRAMES)
    quotas = exchange.frontend.limits.quotas
    quotas.hold(exchange.address, Count.STREAMS, asyncio.get_running_loop().time())
    try:
        await RequestConnection(exchange).serve()
    finally:
        quotas.release(exchange.address, Count.STREAMS)


class RequestConnection:
    """One request, which carries one stream. What it has of limits is shared with the other
    requests of its connection, and with QUIC.

    A request that ends before its answer did was lost with its connection, or reset by whoever is
    in between: its chat is kept for a client that comes back, as over QUIC. A client that gives a
    chat up says so by a cancel.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._frontend = exchange.frontend
        self.context = exchange.frontend.context
        self.limits = exchange.frontend.limits.limits
        self.budget = exchange.budget
        self.secret = exchange.connection_secret
        self._siblings: set[RequestConnection] = exchange.streams
        self._unsent: list[bytes] = []
        self._num_unsent_bytes = 0
        self._num_bytes_in_writing = 0
        self._is_whole = False
        """Nothing follows what is unsent."""
        self._is_cut = False
        """The answer ends here, before its end."""
        self._is_left = False
        """The client is gone."""
        self._woken = asyncio.Event()
        self._stream = EdgeStream(self, 0)

    async def serve(self) -> None:
        """Return once the stream has ended, or its client left. Raises ClientLeft."""
        self._exchange.has_chats = True  # what is refused is counted by the stream
        self._siblings.add(self)
        self._frontend.streams.add(self._stream)
        self._check_room()
        reading = asyncio.create_task(self._read())
        try:
            await self._write()
        finally:
            self._frontend.streams.discard(self._stream)
            self._siblings.discard(self)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
            self._stream.lost(gave_up=False)
            self._stream.release()

    def _check_room(self) -> None:
        most = self.limits.max_chats_per_connection
        if len(self._siblings) > most:
            self._stream.fail(too_many(Count.CHATS, most))

    async def _read(self) -> None:
        try:
            async for piece in self._exchange.pieces():
                self._stream.received(piece, False)
            self._stream.received(b"", True)
            await self._exchange.left()
        except ClientLeft:
            pass
        except Exception as failure:
            self.fail(failure)
        self._is_left = True
        self._woken.set()

    async def _write(self) -> None:
        exchange = self._exchange
        while not self._is_left:
            if self._is_cut:
                exchange.abort()
                break
            if not self._unsent and not self._is_whole:
                self._woken.clear()
                await self._woken.wait()
                continue
            data, is_last = b"".join(self._unsent), self._is_whole
            self._unsent.clear()
            self._num_unsent_bytes, self._num_bytes_in_writing = 0, len(data)
            if not exchange.has_begun:
                await exchange.begin(200, HTTP_FRAMES, {})
            await exchange.write(data, more=not is_last)
            self._num_bytes_in_writing = 0
            if is_last:
                return
            self._stream.send_backlog()
        raise ClientLeft

    # For its stream.

    @property
    def transport(self) -> Transport:
        """What carries the stream."""
        return self

    @property
    def prefix(self) -> str:
        """The client's address prefix."""
        return self._exchange.address

    def check_draining(self) -> None:
        """Raises DrainingError if no chat begins any more."""
        self._frontend.check_draining()

    def begin_chat(self, client: bytes) -> Callable[[], None]:
        """Count a chat of this client, until the returned function is called. Raises
        OverloadedError."""
        return self._exchange.begin_chat(client)

    def spend(self, rate: Rate, amount: int, client: bytes) -> bool:
        """Charge `amount` to the quotas of a client and its address prefix; False if a quota does
        not allow it."""
        try:
            now = asyncio.get_running_loop().time()
            self._frontend.limits.spend(self.prefix, rate, amount, client, now)
        except OverloadedError:
            self.context.telemetry.refused(rate.value)
            return False
        return True

    def end_typing(self) -> AnswerAhead | None:
        """See `StreamConnection.end_typing`."""
        return end_typing(each._stream.handler for each in self._siblings)

    def catches_up(self, stream: EdgeStream, *, is_over: bool = False) -> None:
        """A backlog is continued whenever something was written."""

    def forget(self, stream_id: int) -> None:
        """The request ends with its answer."""

    def fail(self, failure: Exception) -> None:
        """The edge cannot go on with the stream."""
        self.context.telemetry.refused("failure", error=failure_place(failure))
        self.reset_stream()

    def transmit_soon(self) -> None:
        """Send what is queued."""
        self._woken.set()

    # As what carries it.

    def send_stream_data(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        """Send bytes: at once if nothing waits before them."""
        is_next = self._exchange.has_begun and not (self._unsent or self._num_bytes_in_writing)
        if is_next and not end_stream and self._exchange.push(data):
            return
        self._unsent.append(data)
        self._num_unsent_bytes += len(data)
        self._is_whole |= end_stream

    def reset_stream(self, stream_id: int = 0, error_code: int = 0) -> None:
        """End the answer before its end."""
        self._is_cut = True
        self._woken.set()

    def stop_stream(self, stream_id: int, error_code: int) -> None:
        """The client stops at the end of the answer."""

    def num_unacknowledged_bytes(self, stream_id: int) -> int:
        """Bytes that the connection has not taken yet."""
        return self._num_unsent_bytes + self._num_bytes_in_writing
