"""Clients of HTTP/3: aioquic's, and qh3's, which is another implementation of QUIC and TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import qh3.asyncio.client
import qh3.asyncio.protocol
import qh3.h3.connection
import qh3.h3.events
import qh3.quic.configuration
import qh3.quic.events
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection, H3Stream
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StopSendingReceived, StreamReset
from aioquic.tls import SessionTicket

Headers = list[tuple[bytes, bytes]]


@dataclass
class Response:
    """What came on one stream."""

    stream_id: int
    sections: list[dict[bytes, bytes]] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    reset_code: int | None = None
    stop_code: int | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def status(self) -> int:
        return int(self.sections[0][b":status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return self.sections[0]

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    async def whole(self) -> Response:
        """This response, once it has ended in whatever way."""
        await asyncio.wait_for(self.ended.wait(), 30)
        return self

    async def until(self, holds: Callable[[], object]) -> None:
        """Return when this holds of what has come."""
        async with asyncio.timeout(30):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    def fields(self, headers: Headers, ended: bool) -> None:
        self.sections.append(dict(headers))
        self._changed(ended)

    def data(self, data: bytes, ended: bool) -> None:
        if data:
            self.pieces.append(data)
        self._changed(ended)

    def failed(self, reset_code: int | None) -> None:
        self.reset_code = reset_code
        self._changed(True)

    def _changed(self, ended: bool) -> None:
        self.changed.set()
        if ended:
            self.ended.set()


def _ignore(stream: H3Stream) -> None:
    """Checks nothing."""


def request_headers(method: str, path: str, headers: Headers | None = None) -> Headers:
    return [
        (b":method", method.encode()),
        (b":scheme", b"https"),
        (b":authority", b"localhost"),
        (b":path", path.encode()),
        *(headers or []),
    ]


class H3Client(QuicConnectionProtocol):
    """A client without opinions: it sends what it is told to."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.h3 = H3Connection(self._quic)
        # It takes the response to a HEAD, which may tell the length of a GET's, for incomplete.
        self.h3._check_content_length = _ignore  # type: ignore[method-assign]
        self.responses: dict[int, Response] = {}
        self.closed: ConnectionTerminated | None = None
        self.is_closed = asyncio.Event()

    def open(self) -> Response:
        """A stream for a request, on which nothing was sent yet."""
        stream_id = self._quic.get_next_available_stream_id()
        # Reserves it.
        self._quic.send_stream_data(stream_id, b"")
        response = self.responses[stream_id] = Response(stream_id)
        return response

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Headers | None = None,
        *,
        ends: bool = True,
    ) -> Response:
        """Begin a request."""
        response = self.open()
        section = request_headers(method, path, headers)
        self.h3.send_headers(response.stream_id, section, ends and body is None)
        if body is not None:
            self.h3.send_data(response.stream_id, body, ends)
        self.transmit()
        return response

    def raw(self, data: bytes, *, ends: bool = False) -> Response:
        """Send bytes on a new request stream."""
        response = self.open()
        self._quic.send_stream_data(response.stream_id, data, ends)
        self.transmit()
        return response

    async def get(self, path: str, method: str = "GET", body: bytes | None = None) -> Response:
        return await self.ask(method, path, body).whole()

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ConnectionTerminated):
            self.closed = event
            self.is_closed.set()
            for lost in self.responses.values():
                if not lost.ended.is_set():
                    lost.failed(None)
        if isinstance(event, StreamReset) and event.stream_id in self.responses:
            self.responses[event.stream_id].failed(event.error_code)
        if isinstance(event, StopSendingReceived) and event.stream_id in self.responses:
            self.responses[event.stream_id].stop_code = event.error_code
        for it in self.h3.handle_event(event):
            response = self.responses.get(getattr(it, "stream_id", -1))
            if response is None:
                continue
            if isinstance(it, HeadersReceived):
                response.fields(it.headers, it.stream_ended)
            elif isinstance(it, DataReceived):
                response.data(it.data, it.stream_ended)


@asynccontextmanager
async def h3_client(
    port: int,
    ca: Path,
    *,
    ticket: SessionTicket | None = None,
    on_ticket: Callable[[SessionTicket], None] | None = None,
    waits: bool = True,
    **settings: Any,
) -> AsyncIterator[H3Client]:
    """aioquic's client; `settings` as QuicConfiguration has them."""
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=["h3"], session_ticket=ticket, **settings
    )
    configuration.load_verify_locations(str(ca))
    async with connect(
        "127.0.0.1",
        port,
        configuration=configuration,
        create_protocol=H3Client,
        session_ticket_handler=on_ticket,
        wait_connected=waits,
    ) as client:
        assert isinstance(client, H3Client)
        yield client


class OtherClient(qh3.asyncio.protocol.QuicConnectionProtocol):
    """qh3's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.h3 = qh3.h3.connection.H3Connection(self._quic)
        self.responses: dict[int, Response] = {}

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Headers | None = None
    ) -> Response:
        stream_id = self._quic.get_next_available_stream_id()
        response = self.responses[stream_id] = Response(stream_id)
        self.h3.send_headers(stream_id, request_headers(method, path, headers), body is None)
        if body is not None:
            self.h3.send_data(stream_id, body, True)
        self.transmit()
        return response

    def quic_event_received(self, event: qh3.quic.events.QuicEvent) -> None:
        for it in self.h3.handle_event(event):
            response = self.responses.get(getattr(it, "stream_id", -1))
            if response is None:
                continue
            if isinstance(it, qh3.h3.events.HeadersReceived):
                response.fields(list(it.headers), it.stream_ended)
            elif isinstance(it, qh3.h3.events.DataReceived):
                response.data(bytes(it.data), it.stream_ended)
            elif isinstance(it, qh3.h3.events.StreamReset):
                response.failed(it.error_code)


@asynccontextmanager
async def other_client(port: int, ca: Path) -> AsyncIterator[OtherClient]:
    """qh3's client, which checks the certificate as well."""
    configuration = qh3.quic.configuration.QuicConfiguration(
        is_client=True, alpn_protocols=["h3"], cafile=str(ca), verify_mode=ssl.CERT_REQUIRED
    )
    async with qh3.asyncio.client.connect(
        "127.0.0.1", port, configuration=configuration, create_protocol=OtherClient
    ) as client:
        assert isinstance(client, OtherClient)
        yield client
