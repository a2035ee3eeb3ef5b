"""A TCP connection as anycorn reads and writes it: at the pace that other connections leave it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
import anyio.abc
from anyio.streams.tls import TLSStream

from services.edge.http.frame_gate import FrameGate

_LINGER_S: Final = 5.0
"""How long a connection that is closed may take for what was not sent yet."""
_MAX_WAITING_BYTES: Final = 16 << 10
"""Most bytes of a connection that wait for the system to take them; with more, nothing is
pushed."""


class SocketStream(anyio.abc.SocketStream):
    """A connection of asyncio in the interface that anycorn reads and writes. Anyio's own drops
    unsent data when it is closed, and cannot be closed at once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def _raw_socket(self) -> socket.socket:
        found: socket.socket = self._writer.get_extra_info("socket")
        return found

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Raises EndOfStream, BrokenResourceError."""
        try:
            data = await self._reader.read(max_bytes)
        except OSError as error:
            raise anyio.BrokenResourceError from error
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        """Send data; returns once the buffer has room for more. Raises BrokenResourceError."""
        try:
            self._writer.write(item)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:
            raise anyio.BrokenResourceError from error

    @property
    def may_push(self) -> bool:
        """Whether its client reads, so that `push` may be called."""
        transport = self._writer.transport
        return (
            not transport.is_closing() and transport.get_write_buffer_size() <= _MAX_WAITING_BYTES
        )

    def push(self, item: bytes) -> None:
        """Send without waiting for room."""
        self._writer.write(item)

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()

    async def send_eof(self) -> None:
        """Close the sending direction."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write_eof()

    async def aclose(self) -> None:
        """Close once everything is sent, or after a while."""
        self._writer.close()
        try:
            async with asyncio.timeout(_LINGER_S):
                await self._writer.wait_closed()
        except (TimeoutError, OSError):
            self._writer.transport.abort()


def encrypted_push(stream: TLSStream, raw: SocketStream) -> Callable[[bytes], None]:
    """The equivalent of SocketStream.push for a connection whose bytes `stream` encrypts. It raises
    ssl.SSLError if TLS has ended. Like anyio it encrypts and writes in one turn of the event loop,
    so records keep their order."""
    encrypt, records = stream._ssl_object.write, stream._write_bio

    def push(item: bytes) -> None:
        encrypt(item)
        raw.push(records.read())

    return push


class PacedStream(anyio.abc.ByteStream):
    """A connection, encrypted or not, read in pieces: each when it is the connection's turn, and as
    its gate lets pass."""

    def __init__(
        self,
        stream: anyio.abc.ByteStream,
        gate: FrameGate,
        turn: Callable[[], Awaitable[None]],
        push: Callable[[bytes], None],
    ) -> None:
        """`turn` returns when it is the connection's turn; `push` is SocketStream's, or
        `encrypted_push`."""
        self._stream = stream
        self._gate = gate
        self._push = push
        self._clock = asyncio.get_running_loop().time
        self.turn = turn

    @property
    def is_http2(self) -> bool:
        """Whether the client began with the preface of HTTP/2."""
        return self._gate.is_http2

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Attributes of the wrapped connection."""
        return self._stream.extra_attributes

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Raises EndOfStream, BrokenResourceError; and what FrameGate.next_piece does. May be
        cancelled: nothing is lost."""
        while self._gate.is_empty:
            self._gate.receive(await self._stream.receive(max_bytes))
        await self.turn()
        return self._gate.next_piece(self._clock())

    async def send(self, item: bytes) -> None:
        """Send data; returns once the buffer has room for more. Raises BrokenResourceError."""
        self._gate.sent(item, self._clock())
        await self._stream.send(item)

    def push(self, item: bytes) -> None:
        """Send without waiting for room, as SocketStream.may_push allows. Raises ssl.SSLError."""
        self._gate.sent(item, self._clock())
        self._push(item)

    async def send_eof(self) -> None:
        """Close the sending direction."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close once everything is sent, or after a while."""
        await self._stream.aclose()
