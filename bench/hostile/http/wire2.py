"""HTTP/2 from an attacker's side: frames are written by hand, and of answers the status is read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from hpack import Decoder, HPACKError

from bench.hostile.http.sending import SOURCE, Answer, note
from bench.hostile.target import Findings, Target

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
_HEAD_BYTES: Final = 9
_WINDOW: Final = 1 << 24


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """RFC 9113, section 4.1."""
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big")
    return head + payload


def integer(value: int, prefix_bits: int, first: int = 0) -> bytes:
    """RFC 7541, section 5.1; `first`: the bits before the prefix."""
    most = (1 << prefix_bits) - 1
    if value < most:
        return bytes((first | value,))
    written, value = bytearray((first | most,)), value - most
    while value > 127:
        written.append(0x80 | value & 0x7F)
        value >>= 7
    written.append(value)
    return bytes(written)


def field(name: bytes, value: bytes, *, indexed: bool = False) -> bytes:
    """A literal (RFC 7541, section 6.2), which goes into the dynamic table if it is `indexed`."""
    kind = b"\x40" if indexed else b"\x00"
    return kind + integer(len(name), 7) + name + integer(len(value), 7) + value


def section(*fields: tuple[bytes, bytes]) -> bytes:
    """A header section of literals."""
    return b"".join(field(name, value) for name, value in fields)


def pseudo(method: bytes = b"GET", path: bytes = b"/hidden") -> tuple[tuple[bytes, bytes], ...]:
    """The pseudo header fields of a request."""
    return (
        *((b":method", method), (b":scheme", b"http")),
        *((b":authority", b"edge"), (b":path", path)),
    )


class Http2:
    """One connection. What comes is read all the while."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder()
        self._changed = asyncio.Event()
        self._stream_id = -1
        self.statuses: dict[int, int] = {}
        """By stream."""
        self.num_reset = 0
        self.is_ended = False
        """The edge has closed, or says that it does."""

    async def send(self, data: bytes) -> None:
        """Raises OSError where the edge has closed."""
        self._writer.write(data)
        await self._writer.drain()

    def stream(self) -> int:
        """The number of a stream that was not used yet."""
        self._stream_id += 2
        return self._stream_id

    def request(
        self, *more: tuple[bytes, bytes], path: bytes = b"/hidden", end: bool = True
    ) -> bytes:
        """A frame that begins a request."""
        flags = END_HEADERS | (END_STREAM if end else 0)
        return frame(HEADERS, flags, self.stream(), section(*pseudo(path=path), *more))

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        """Return when this holds, when the edge has closed, or when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not (holds() or self.is_ended):
                    self._changed.clear()
                    await self._changed.wait()

    async def read_on(self) -> None:
        """Until the connection ends."""
        try:
            while True:
                head = await self._reader.readexactly(_HEAD_BYTES)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                self._came(head[3], int.from_bytes(head[5:], "big"), payload)
                self._changed.set()
        except (OSError, EOFError, HPACKError):
            self.is_ended = True
            self._changed.set()

    def _came(self, kind: int, stream_id: int, payload: bytes) -> None:
        if kind == HEADERS:
            fields = dict(self._decoder.decode(payload, raw=True))
            self.statuses[stream_id] = int(fields.get(b":status", b"0"))
        elif kind == RST_STREAM:
            self.num_reset += 1
        elif kind == GOAWAY:
            self.is_ended = True


@contextlib.asynccontextmanager
async def http2(
    target: Target, findings: Findings, *, window: int = _WINDOW, settings: bytes = b""
) -> AsyncIterator[Http2]:
    """A connection, aborted in the end; what it was answered is noted then. `window`: how much of
    a stream the edge may send. Raises OSError."""
    reader, writer = await asyncio.open_connection(
        target.host, target.http_port, local_addr=(SOURCE, 0)
    )
    connection = Http2(reader, writer)
    reading = asyncio.create_task(connection.read_on())
    try:
        initial_window = b"\x00\x04" + window.to_bytes(4, "big")
        await connection.send(PREFACE + frame(SETTINGS, 0, 0, initial_window + settings))
        yield connection
    finally:
        writer.transport.abort()
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        for status in connection.statuses.values():
            note(findings, Answer(status))
        if connection.num_reset:
            findings.count("streams reset by the edge", connection.num_reset)
        if connection.is_ended:
            findings.count("connections ended by the edge")
