"""Header sections of HTTP/2 that grow when they are read, or that HTTP/1.1 would read as two."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, TypeAlias

from hpack import Decoder

from outrider.models.vocabulary import Vocabulary
from tests.edge.integration.http_client import plain, serving_http
from tests.edge.integration.running import Running
from tests.edge.integration.test_http_floods import DATA, GOAWAY, HEADERS, RST_STREAM, frame
from tests.edge.integration.test_http_floods import Flooder as Client

Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]
_CONTINUATION: Final = 9
_END_STREAM, _END_HEADERS = 0x1, 0x4
_PIECE_BYTES: Final = 16_000


def _integer(value: int, prefix_bits: int, first: int = 0) -> bytes:
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


def _literal(name: bytes, value: bytes, kind: bytes = b"\x00") -> bytes:
    """Section 6.2; of the kind 0x40 it goes into the dynamic table."""
    return kind + _integer(len(name), 7) + name + _integer(len(value), 7) + value


def _section(fields: Fields) -> bytes:
    return b"".join(_literal(name, value) for name, value in fields)


def _request(method: bytes = b"GET", path: bytes = b"/hidden") -> Fields:
    named = ((b":method", method), (b":scheme", b"http"), (b":authority", b"localhost"))
    return (*named, (b":path", path))


_GET, _POST = _request(), _request(b"POST", b"/tokenize")
_PLAIN = _section(_GET)
_BEHIND = b"0\r\n\r\nGET /hidden HTTP/1.1\r\n\r\n"
BOMBS: Final = {
    "a long field, named thousands of times": (
        _literal(b"x", b"y" * 3900, b"\x40") + b"\xbe" * 16_000
    ),
    "a table of gigabytes": b"\x3f\xff\xff\xff\xff\x0f" + _PLAIN,
    "a table resized again and again": b"\x20" * 5000 + _PLAIN,
    "an integer without an end": b"\xff" + b"\x80" * 5000 + b"\x01",
    "an index far beyond the table": _integer(1 << 40, 7, 0x80),
    "a name longer than the section": b"\x00" + _integer(1 << 30, 7) + b"x",
    "no Huffman code": b"\x00\x81\xff\x81\xff",
    "four megabytes of fields": _PLAIN + _literal(b"x", b"y" * 200) * 20_000,
}
AMBIGUOUS: Final[dict[str, tuple[Fields, bytes]]] = {
    "a line end in a value": ((*_GET, (b"x", b"y\r\nHost: other")), b""),
    "a line end in a name": ((*_GET, (b"x\r\ny", b"z")), b""),
    "a NUL in a value": ((*_GET, (b"x", b"y\x00z")), b""),
    "a name in upper case": ((*_GET, (b"X", b"y")), b""),
    "a transfer coding": ((*_POST, (b"transfer-encoding", b"chunked")), _BEHIND),
    "a connection's own field": ((*_POST, (b"connection", b"transfer-encoding")), _BEHIND),
    "a length of nothing": ((*_POST, (b"content-length", b"0")), _BEHIND),
    "two lengths": (
        (*_POST, (b"content-length", b"5"), (b"content-length", b"6")),
        _BEHIND,
    ),
    "a length of thirty digits": ((*_POST, (b"content-length", b"9" * 30)), _BEHIND),
    "two paths": ((*_GET, (b":path", b"/other")), b""),
    "a field before the pseudo fields": (((b"x", b"y"), *_GET), b""),
    "no path": (_GET[:3], b""),
    "an empty path": (_request(path=b""), b""),
    "a request line in the path": (_request(path=b"/a b HTTP/1.1\r\nx: y"), b""),
    "a request line in the method": (_request(b"GET / HTTP/1.1\r\nx:"), b""),
    "a tunnel": (_request(b"CONNECT"), b""),
    "a status": ((*_GET, (b":status", b"200")), b""),
}


def _frames(section: bytes, data: bytes = b"") -> bytes:
    """A request on stream 1."""
    pieces = [section[at : at + _PIECE_BYTES] for at in range(0, len(section), _PIECE_BYTES)]
    made = b""
    for number, piece in enumerate(pieces):
        flags = 0 if number or data else _END_STREAM
        flags |= _END_HEADERS if number == len(pieces) - 1 else 0
        made += frame(_CONTINUATION if number else HEADERS, piece, flags, 1)
    return made + (frame(DATA, data, _END_STREAM, 1) if data else b"")


async def _refused(mesh: Running, frames: bytes) -> bool:
    """Whether the edge resets the request, ends the connection, or answers with a refusal."""
    client = await Client.connected(mesh)
    reader = client._reader
    client.writer.write(frames)
    try:
        while True:
            async with asyncio.timeout(30):
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] in (RST_STREAM, GOAWAY):
                return True
            if head[3] == HEADERS:
                status = int(dict(Decoder().decode(payload, raw=True))[b":status"])
                return 400 <= status < 500 or status == 501
    except (asyncio.IncompleteReadError, ConnectionError):
        return True
    finally:
        client.writer.transport.abort()


async def test_header_sections_that_explode_or_are_read_in_two_ways_are_refused(
    words: Vocabulary, tmp_path: Path
) -> None:
    cases = {name: _frames(section) for name, section in BOMBS.items()}
    cases |= {name: _frames(_section(fields), data) for name, (fields, data) in AMBIGUOUS.items()}
    async with serving_http(words, tmp_path) as mesh:
        served = [name for name, frames in cases.items() if not await _refused(mesh, frames)]
        assert served == []
        async with plain(mesh) as other:
            assert (await other.get("/v1/models")).status_code == 200
