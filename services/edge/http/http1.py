"""HTTP/1.1 of this edge: anycorn's, without features that let a client evade a proxy's rules or
keep the edge computing after it has gone."""

from __future__ import annotations

import asyncio
from typing import Final

import anyio
import h11
from anycorn.events import Closed, Event, RawData
from anycorn.protocol import ProtocolWrapper
from anycorn.protocol.h11 import H2ProtocolAssumedError, H11Protocol

from services.edge.http.http2 import Http2, Pushing
from services.edge.http.paced_stream import PacedStream

_MAX_READ_BYTES: Final = 64 << 10
_BAD_REQUEST: Final = 400


class ClientClosed(Exception):
    """The client closed its connection, or sent too much, while a request of it was served."""


def use_ours(
    wrapper: ProtocolWrapper, stream: PacedStream, pushing: Pushing, max_waiting_bytes: int
) -> None:
    """Have a connection served as this edge does, before it begins. Over HTTP/1.1 another request
    may wait behind the one that is served, `max_waiting_bytes` of it."""
    if isinstance(wrapper.protocol, H11Protocol):
        wrapper.protocol = Http1(wrapper, stream, pushing, max_waiting_bytes)
    else:
        wrapper.protocol = Http2(wrapper, pushing)


class Http1(H11Protocol):
    """One connection."""

    def __init__(
        self,
        wrapper: ProtocolWrapper,
        stream: PacedStream,
        pushing: Pushing,
        max_waiting_bytes: int,
    ) -> None:
        super().__init__(
            *(wrapper.app, wrapper.config, wrapper.context, wrapper.task_group, wrapper.state),
            *(wrapper.client, wrapper.server, wrapper.send, wrapper.tls),
        )
        assert isinstance(self.connection, h11.Connection)
        self._wrapper = wrapper
        self._paced = stream
        self._pushing = pushing
        self.can_read = _Turn(stream, self.connection, max_waiting_bytes)

    def push(self, stream_id: int, data: bytes) -> bool:
        """Send a piece of a body whose length was not told; False: nothing was sent, for something
        waits before it."""
        if not self._pushing.may_push:
            return False
        try:
            piece = self.connection.send(h11.Data(data=data))
        except h11.LocalProtocolError:
            return False  # its client broke the protocol; whoever sends and waits is told
        self._pushing.push(piece)
        return True

    def forget(self) -> None:
        """The connection is over: let go of what came over it."""
        del self.connection, self.can_read

    async def handle(self, event: Event) -> None:
        """Handle received bytes, or their end."""
        try:
            await super().handle(event)
        except H2ProtocolAssumedError as preface:
            self._wrapper.protocol = Http2(self._wrapper, self._pushing)
            await self._wrapper.initiate()
            await self._wrapper.handle(RawData(data=preface.data))

    async def _check_protocol(self, event: h11.Request) -> None:
        """Accept HTTP/2 only by its own preface. `Upgrade: h2c` is deprecated (RFC 9113, section
        3.1), and behind a proxy that forwards it a client could send what the proxy refuses. Bytes
        that merely resemble the preface, or follow a request, would evade the count of frames."""
        if self._paced.is_http2:
            await super()._check_protocol(event)

    async def _create_stream(self, request: h11.Request) -> None:
        """Refuse a request with two framings and close its connection (RFC 9112, sections 6.1 and
        6.3): a proxy may have read it by the other framing, and its body could hide another,
        unchecked request."""
        if _has_two_framings(request):
            await self._send_error_response(_BAD_REQUEST)
            await self.send(Closed())
            return
        await super()._create_stream(request)


def _has_two_framings(request: h11.Request) -> bool:
    """HTTP/1.0 has no chunks: there the encoding is one that others do not know."""
    names = {name for name, _ in request.headers}
    is_chunked = b"transfer-encoding" in names
    return is_chunked and (b"content-length" in names or request.http_version < b"1.1")


class _Turn:
    """When the next request of a connection may be served; an event of anycorn. Meanwhile the
    connection is still read: its client may close it, and the chat being served must then end."""

    def __init__(
        self,
        stream: PacedStream,
        connection: h11.Connection,
        max_waiting_bytes: int,
    ) -> None:
        self._stream = stream
        self._connection = connection
        self._max_waiting_bytes = max_waiting_bytes
        self._event = asyncio.Event()

    async def clear(self) -> None:
        """Another request is being served."""
        self._event.clear()

    async def set(self) -> None:
        """The next request may be served."""
        self._event.set()

    def is_set(self) -> bool:
        """Whether it is."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Return when it is, for this connection and then among all. Raises ClientClosed."""
        turn = asyncio.create_task(self._event.wait())
        try:
            while not self._event.is_set():
                await self._read_until(turn)
        finally:
            turn.cancel()
        await self._stream.turn()

    async def _read_until(self, turn: asyncio.Task[bool]) -> None:
        reading = asyncio.create_task(self._stream.receive(_MAX_READ_BYTES))
        try:
            await asyncio.wait((turn, reading), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
            data = await reading
        except asyncio.CancelledError:
            if not turn.done():
                reading.cancel()
                raise
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise ClientClosed from None
        else:
            self._connection.receive_data(data)
            if len(self._connection.trailing_data[0]) > self._max_waiting_bytes:
                if self._connection.our_state is not h11.DONE:
                    raise ClientClosed
                # The client has the whole answer, and sends its next request: its turn comes as
                # soon as the task that answered has run to its end.
                await self._event.wait()
