"""The QUIC connection to an edge: streams in, streams out, and why it failed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
    StreamDataReceived,
    StreamReset,
)

from outrider.client.protocol import ACK_DELAY_S, ALPN, CloseCode
from outrider.errors import ConfigError, OutriderError, OverloadedError, UnavailableError

KEEPALIVE_S: Final = 10.0
"""An edge closes a connection from which nothing comes for half a minute."""
_IDLE_TIMEOUT_S: Final = 60.0
_NO_ALPN: Final = 0x178  # RFC 9001, section 4.8: 0x100 + TLS alert no_application_protocol
_CERTIFICATE_ALERTS: Final = range(0x12A, 0x131)  # bad_certificate .. unknown_ca


class StreamReader(Protocol):
    """Where a stream's bytes go."""

    def received(self, data: bytes, end_stream: bool) -> None:
        """Bytes from the edge; `end_stream`: no more will follow."""
        ...

    def failed(self, error: OutriderError) -> None:
        """The stream was cut off."""
        ...


@dataclass(frozen=True, slots=True)
class EdgeAddress:
    """Where the edge is and how it is to be trusted."""

    host: str
    port: int
    ca: Path | None = None
    """PEM file of the certificates to trust; None: the usual authorities."""
    insecure: bool = False
    """Trust whoever answers."""
    server_name: str | None = None
    """The name in the certificate, if it is not `host`."""

    def __str__(self) -> str:
        return f"quic://{self.host}:{self.port}"


class ClientConnection(QuicConnectionProtocol):
    """One connection. `lost` is why it cannot be used any more."""

    def __init__(self, quic: QuicConnection, address: EdgeAddress) -> None:
        super().__init__(quic)
        quic._ack_delay = ACK_DELAY_S  # aioquic has no public setting for it
        self._address = address
        self._readers: dict[int, StreamReader] = {}
        self._established: asyncio.Future[None] = self._loop.create_future()
        self._pings = itertools.count()
        self._keepalive: asyncio.TimerHandle | None = None
        self.lost: OutriderError | None = None

    async def establish(self, peer: tuple[str, int], timeout_s: float) -> None:
        """Shake hands. Raises UnavailableError, OverloadedError."""
        self.connect(peer)
        try:
            await asyncio.wait_for(self._established, timeout_s)
        except TimeoutError:
            raise UnavailableError(
                f"no answer from {self._address} within {timeout_s:g} s; check that the edge runs, "
                "the host and port, and that UDP gets through"
            ) from None
        self._ping_later()

    def open(self, reader: StreamReader, data: bytes) -> int:
        """Open a stream, send `data` on it and return its number. Raises what lost the
        connection, if it is lost."""
        if self.lost is not None:
            raise self.lost
        stream_id = self._quic.get_next_available_stream_id()
        self._readers[stream_id] = reader
        self.send(stream_id, data)
        return stream_id

    def send(self, stream_id: int, data: bytes) -> None:
        """Send on a stream that is open; on one that has ended, nothing happens."""
        if stream_id in self._readers:
            with contextlib.suppress(RuntimeError):  # the edge asked to stop: the end is coming
                self._quic.send_stream_data(stream_id, data)
            self.transmit()

    def drop(self, stream_id: int) -> None:
        """Give a stream up in both directions, at once."""
        if self._readers.pop(stream_id, None) is not None:
            self._quic.reset_stream(stream_id, CloseCode.CLIENT_CANCELLED)
            self._quic.stop_stream(stream_id, CloseCode.CLIENT_CANCELLED)
            self.transmit()

    def shut(self) -> None:
        """Close. The edge is told in one datagram; the drain time of RFC 9000, section 10.2, is
        not waited for, since the socket closes with the connection."""
        self._lose(UnavailableError("the client is closed"))
        self.close(CloseCode.DONE)
        for timer in (self._keepalive, self._timer):
            if timer is not None:
                timer.cancel()
        if self._transport is not None:
            self._transport.close()

    def quic_event_received(self, event: QuicEvent) -> None:
        """Called by aioquic for each event, in order."""
        match event:
            case StreamDataReceived(data, end_stream, stream_id):
                self._received(stream_id, data, end_stream)
            case StreamReset(error_code, stream_id):
                if (reader := self._readers.pop(stream_id, None)) is not None:
                    reader.failed(_stream_error(error_code))
            case HandshakeCompleted():
                if not self._established.done():
                    self._established.set_result(None)
            case ConnectionTerminated():
                self._lose(_connection_error(event, self._address))

    def error_received(self, exc: Exception) -> None:
        """Called by asyncio when the socket reports an error, as for a port nobody listens on."""
        self._lose(
            UnavailableError(
                f"nothing answers at {self._address} ({exc}); check that the edge runs and the port"
            )
        )

    def _received(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        reader = self._readers.get(stream_id)
        if reader is None:
            return
        if end_stream:
            del self._readers[stream_id]
            # Our own direction ends too, or the edge would keep the stream.
            self._quic.reset_stream(stream_id, CloseCode.DONE)
        reader.received(data, end_stream)

    def _lose(self, error: OutriderError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        if not self._established.done():
            self._established.set_exception(error)
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.failed(error)

    def _ping_later(self) -> None:
        self._keepalive = self._loop.call_later(KEEPALIVE_S, self._ping)

    def _ping(self) -> None:
        if self.lost is None:
            self._quic.send_ping(next(self._pings))
            self.transmit()
            self._ping_later()


async def dial(address: EdgeAddress, timeout_s: float) -> ClientConnection:
    """Connect to the first of the host's addresses that answers. Raises UnavailableError,
    OverloadedError, ConfigError."""
    loop = asyncio.get_running_loop()
    configuration = _configuration(address)
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise UnavailableError(f"{address.host} cannot be resolved ({error}); check it") from error
    failure: OutriderError = UnavailableError(f"{address.host} has no address")
    for *_, peer in found:
        try:
            return await _dial(address, configuration, (peer[0], peer[1], *peer[2:]), timeout_s)
        except OutriderError as error:
            failure = error
    raise failure


async def _dial(
    address: EdgeAddress,
    configuration: QuicConfiguration,
    peer: tuple[str, int],
    timeout_s: float,
) -> ClientConnection:
    quic = QuicConnection(configuration=configuration)
    try:
        # A connected socket hears of a refused port; an unconnected one would wait in vain.
        _, connection = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: ClientConnection(quic, address), remote_addr=peer[:2]
        )
    except OSError as error:
        raise UnavailableError(f"{address} cannot be reached ({error})") from error
    try:
        await connection.establish(peer, timeout_s)
    except BaseException:
        connection.shut()
        raise
    return connection


def _configuration(address: EdgeAddress) -> QuicConfiguration:
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=[ALPN],
        idle_timeout=_IDLE_TIMEOUT_S,
        server_name=address.server_name or address.host,
    )
    if address.insecure:
        configuration.verify_mode = ssl.CERT_NONE
    elif address.ca is not None:
        if not address.ca.is_file():
            raise ConfigError(f"there is no certificate file {address.ca}; start the edge first?")
        _check_readable(address.ca)
        configuration.load_verify_locations(cafile=str(address.ca))
    return configuration


def _check_readable(ca: Path) -> None:
    """aioquic would find out in the handshake, and never say so."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=ca)
    except OSError as error:
        raise ConfigError(f"{ca} holds no certificate in PEM to trust: {error}") from error


def _stream_error(error_code: int) -> OutriderError:
    if error_code == CloseCode.SLOW_READER:
        return OverloadedError("the edge dropped the chat: its events were not read in time")
    return UnavailableError(f"the edge cut the chat off (stream error {error_code:#x})")


def _connection_error(event: ConnectionTerminated, address: EdgeAddress) -> OutriderError:
    reason = event.reason_phrase or f"error {event.error_code:#x}"
    if event.frame_type is None and event.error_code == CloseCode.OVERLOADED:
        return OverloadedError(f"{address} refused: {reason}", retry_delay_ms=1000)
    if event.frame_type is not None and event.error_code == _NO_ALPN:
        return UnavailableError(f"{address} does not speak {ALPN}; check that it is an edge")
    if event.frame_type is not None and event.error_code in _CERTIFICATE_ALERTS:
        return UnavailableError(
            f"the certificate of {address} is not trusted ({reason}); give its file as `ca`, "
            "or the name it is for as `server_name`"
        )
    return UnavailableError(f"the connection to {address} ended: {reason}; connect again")
