"""A client that sends any bytes on streams of a QUIC connection, and reads or does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import QuicEvent, StreamDataReceived, StreamReset

from bench.hostile.target import Target, certificate_of
from outrider.client.protocol import ALPN
from outrider.codec.frames import FrameDecoder
from outrider.v1 import edge_pb2

_HANDSHAKE_TIMEOUT_S: Final = 10.0


class RawConnection(QuicConnectionProtocol):
    """Keeps what was received on each stream, and whether the stream ended."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        super().__init__(*arguments, **settings)  # type: ignore[arg-type]
        self.received: dict[int, bytearray] = {}
        self.ended: dict[int, asyncio.Event] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        """Called by aioquic for each event."""
        if isinstance(event, StreamDataReceived):
            self.received.setdefault(event.stream_id, bytearray()).extend(event.data)
            if event.end_stream:
                self._end(event.stream_id)
        elif isinstance(event, StreamReset):
            self._end(event.stream_id)

    def send(self, data: bytes, *, end: bool = False, stream_id: int | None = None) -> int:
        """Send on a stream, a new one by default; its number."""
        number = self._quic.get_next_available_stream_id() if stream_id is None else stream_id
        self.ended.setdefault(number, asyncio.Event())
        self._quic.send_stream_data(number, data, end)
        self.transmit()
        return number

    def reset(self, stream_id: int) -> None:
        """Give up both directions of a stream; one that is over stays so."""
        with contextlib.suppress(ValueError, RuntimeError, AssertionError):
            self._quic.reset_stream(stream_id, 0)
            self._quic.stop_stream(stream_id, 0)
        self.transmit()

    async def answer(self, stream_id: int, timeout_s: float = 5.0) -> list[edge_pb2.EdgeFrame]:
        """All frames of a stream, once it has ended or that time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.ended[stream_id].wait()
        payloads = FrameDecoder().feed(bytes(self.received.get(stream_id, b"")))
        return [edge_pb2.EdgeFrame.FromString(payload) for payload in payloads]

    def vanish(self) -> None:
        """Close the socket without telling the edge."""
        if self._transport is not None:
            self._transport.close()

    def _end(self, stream_id: int) -> None:
        self.ended.setdefault(stream_id, asyncio.Event()).set()


@contextlib.asynccontextmanager
async def raw_connection(
    target: Target, *, window_bytes: int = 1 << 20
) -> AsyncIterator[RawConnection]:
    """A connection to the edge; the edge may send `window_bytes` that nobody read. Raises
    ConnectionError, TimeoutError."""
    configuration = _configuration(target, window_bytes)
    async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
        context = connect(
            target.host, target.port, configuration=configuration, create_protocol=RawConnection
        )
        connection = await context.__aenter__()
    try:
        assert isinstance(connection, RawConnection)
        yield connection
    finally:
        connection.close()
        connection.transmit()


@contextlib.asynccontextmanager
async def connection_from(source: str, target: Target) -> AsyncIterator[RawConnection]:
    """A connection to the edge from the address `source` of this machine. Raises ConnectionError,
    TimeoutError."""
    quic = QuicConnection(configuration=_configuration(target, 1 << 20))
    _, connection = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: RawConnection(quic), local_addr=(source, 0)
    )
    try:
        async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
            connection.connect((target.host, target.port))
            await connection.wait_connected()
        yield connection
    finally:
        connection.close()
        await connection.wait_closed()
        connection.vanish()


def _configuration(target: Target, window_bytes: int) -> QuicConfiguration:
    configuration = QuicConfiguration(
        alpn_protocols=[ALPN],
        server_name=target.host,
        max_data=window_bytes,
        max_stream_data=window_bytes,
    )
    configuration.load_verify_locations(str(certificate_of(target)))
    return configuration
