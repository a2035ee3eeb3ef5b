"""A connection to an edge over TCP: the native protocol's streams as requests of HTTP/2, in TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass
from typing import Final, cast

import certifi
import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions

from outrider.client.address import EdgeAddress
from outrider.client.failures import http_error
from outrider.client.life_signs import LifeSigns
from outrider.client.liveness import LinkAction
from outrider.client.protocol import HTTP_FRAMES, HTTP_PATH, CloseCode
from outrider.client.streams import StreamReader
from outrider.client.ways import Way
from outrider.client.wire import CANCEL, DESCRIBE
from outrider.errors import OutriderError, OverloadedError, UnavailableError

_PING: Final = b"outrider"
_NEXT_ADDRESS_S: Final = 0.25
"""RFC 8305, section 5."""


@dataclass(slots=True)
class _Stream:
    """One request."""

    reader: StreamReader
    unsent: bytearray
    """What the edge's flow control does not allow yet."""
    is_answered: bool = False
    """Whether the head of the answer has come."""


class Http2Connection(asyncio.Protocol):
    """One connection to the edge at `address`. `lost` is why it cannot be used any more."""

    def __init__(self, address: EdgeAddress) -> None:
        self._edge = str(address)
        self._authority = f"{address.host}:{address.tcp_port}"
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        self._streams: dict[int, _Stream] = {}
        self._life = LifeSigns(lambda: bool(self._streams), self._act)
        self.lost: OutriderError | None = None
        self.is_leaving = False
        self.process_name = b""
        self.was_established = False

    @property
    def way(self) -> Way:
        """TCP."""
        return Way.TCP

    @property
    def is_idle(self) -> bool:
        """Whether no stream is open."""
        return not self._streams

    async def established(self) -> None:
        """Return once the edge has answered a question: that something speaks TLS and HTTP/2 there
        does not make it an edge. Raises UnavailableError, OverloadedError."""
        greeting = _Greeting()
        stream_id = self.open(greeting, DESCRIBE)
        try:
            await greeting.answered
        finally:
            self.drop(stream_id)
        self.was_established = True
        self._life.watch()

    async def migrate(self) -> None:
        """TCP has one path. Raises UnavailableError."""
        raise UnavailableError(f"the connection to {self._edge} goes over TCP, which cannot move")

    def open(self, reader: StreamReader, data: bytes) -> int:
        """See Connection.open."""
        if self.lost is not None:
            raise self.lost
        stream_id = self._h2.get_next_available_stream_id()
        head = {
            ":method": "POST",
            ":scheme": "https",
            ":authority": self._authority,
            ":path": HTTP_PATH,
            "content-type": HTTP_FRAMES,
        }
        try:
            self._h2.send_headers(stream_id, list(head.items()))
        except h2.exceptions.TooManyStreamsError as error:
            raise OverloadedError(
                f"{self._edge} takes no more chats on one connection; wait for some to end"
            ) from error
        self._streams[stream_id] = _Stream(reader, bytearray())
        self.send(stream_id, data)
        if self.was_established:
            self._life.watch()
        return stream_id

    def send(self, stream_id: int, data: bytes) -> None:
        """See Connection.send."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.unsent += data
            self._send_allowed(stream_id, stream)
            self._flush()

    def drop(self, stream_id: int) -> None:
        """See Connection.drop. A request that is reset may as well have been lost on its way, so a
        cancel goes before."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if not stream.unsent:
            self.send(stream_id, CANCEL)
        del self._streams[stream_id]
        self._reset(stream_id)

    def shut(self, code: CloseCode = CloseCode.DONE, error: OutriderError | None = None) -> None:
        """See Connection.shut."""
        why = error or UnavailableError("the client is closed")
        if code is CloseCode.DONE:
            for stream_id, stream in list(self._streams.items()):
                self.drop(stream_id)
                stream.reader.failed(why)
        self._lose(why)

    # From the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TLS handshake is complete."""
        self._transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Bytes came from the edge."""
        self._life.heard()
        try:
            for event in self._h2.receive_data(data):
                self._take(event)
        except h2.exceptions.ProtocolError as error:
            self._lose(UnavailableError(f"{self._edge} broke HTTP/2 ({error}); connect again"))
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended, whichever side ended it."""
        why = "" if exc is None else f" ({exc})"
        self._lose(UnavailableError(f"the connection to {self._edge} ended{why}; connect again"))

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived():
                self._answered(event)
            case h2.events.DataReceived():
                self._received(event)
            case h2.events.StreamEnded():
                self._ended(event.stream_id)
            case h2.events.StreamReset():
                if (stream := self._streams.pop(event.stream_id, None)) is not None:
                    why = f"the edge cut the chat off (HTTP/2 error {event.error_code:#x})"
                    stream.reader.failed(UnavailableError(why))
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for stream_id, stream in list(self._streams.items()):
                    self._send_allowed(stream_id, stream)
            case h2.events.ConnectionTerminated():
                said = (event.additional_data or b"").decode(errors="replace")
                why = f"{self._edge} closes this connection{f': {said}' if said else ''}"
                kind = OverloadedError if event.error_code else UnavailableError
                self._lose(kind(f"{why}; connect again"))

    def _answered(self, event: h2.events.ResponseReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        fields = {str(name): str(value) for name, value in event.headers}
        stream.is_answered = (
            fields[":status"] == "200" and fields.get("content-type") == HTTP_FRAMES
        )
        if not stream.is_answered:
            del self._streams[event.stream_id]
            self._reset(event.stream_id)
            stream.reader.failed(http_error(fields, self._edge))

    def _received(self, event: h2.events.DataReceived) -> None:
        with contextlib.suppress(h2.exceptions.ProtocolError):  # its stream is closed by now
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.reader.received(event.data, False)

    def _ended(self, stream_id: int) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        with contextlib.suppress(h2.exceptions.ProtocolError):
            if stream.unsent:
                self._h2.reset_stream(stream_id, h2.errors.ErrorCodes.NO_ERROR)
            else:
                self._h2.end_stream(stream_id)
        stream.reader.received(b"", True)

    def _send_allowed(self, stream_id: int, stream: _Stream) -> None:
        """Send what the edge's flow control allows."""
        with contextlib.suppress(h2.exceptions.ProtocolError):  # closed: the end is coming
            while stream.unsent:
                room = min(
                    self._h2.local_flow_control_window(stream_id),
                    self._h2.max_outbound_frame_size,
                )
                if room <= 0:
                    return
                self._h2.send_data(stream_id, bytes(stream.unsent[:room]))
                del stream.unsent[:room]

    def _reset(self, stream_id: int) -> None:
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self._h2.reset_stream(stream_id, h2.errors.ErrorCodes.CANCEL)
        self._flush()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _lose(self, error: OutriderError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        self._life.stop()
        streams, self._streams = self._streams, {}
        if self._transport is not None:
            self._flush()
            self._transport.close()
            # The edge's own farewell is not waited for: whoever leaves may end the loop.
            self._loop.call_soon(self._transport.abort)
        for stream in streams.values():
            stream.reader.failed(error)

    def _act(self, action: LinkAction) -> None:
        match action:
            case LinkAction.PING:
                self._h2.ping(_PING)
                self._flush()
            case LinkAction.GIVE_UP:
                self._lose(UnavailableError(f"{self._edge} no longer answers; connect again"))
            case LinkAction.WAIT | LinkAction.MIGRATE:
                pass


class _Greeting:
    """Hears whether an edge is at the other end."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def received(self, data: bytes, end_stream: bool) -> None:
        """The head of the answer was right, or nothing would come."""
        if end_stream and not self.answered.done():
            self.answered.set_result(None)

    def failed(self, error: OutriderError) -> None:
        """There is none, or it does not want this client."""
        if not self.answered.done():
            self.answered.set_exception(error)


async def connect_http2(address: EdgeAddress, timeout_s: float) -> Http2Connection:
    """Connect over TCP to the first of the host's addresses that answers. Raises UnavailableError,
    OverloadedError, ConfigError."""
    connection: Http2Connection | None = None
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Http2Connection(address),
                address.host,
                address.tcp_port,
                ssl=_tls(address),
                server_hostname=address.server_name or address.host,
                happy_eyeballs_delay=_NEXT_ADDRESS_S,
            )
            await connection.established()
    except TimeoutError as error:
        _close(connection)
        raise UnavailableError(
            f"no answer from {address} over TCP within {timeout_s:g} s"
        ) from error
    except OSError as error:
        raise UnavailableError(f"{address} cannot be reached over TCP ({error})") from error
    except BaseException:
        _close(connection)
        raise
    return connection


def _close(connection: Http2Connection | None) -> None:
    if connection is not None:
        connection.shut()


def _tls(address: EdgeAddress) -> ssl.SSLContext:
    """The same trust as over QUIC. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    if address.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif address.ca is None:
        context.load_verify_locations(certifi.where())
    else:
        address.check_ca()
        context.load_verify_locations(address.ca)
    return context
