"""What attacks send over HTTP, and how they read the answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from hpack import Decoder

from bench.hostile.http1 import ask
from bench.hostile.http2 import field, integer, section
from bench.hostile.target import Findings, Target, crowd, turns


@contextlib.asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[Target]:
    """Answers what comes first on a connection with this, then closes it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read(1 << 16)
            writer.write(answer)
            await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield Target("127.0.0.1", 0, "", listening.sockets[0].getsockname()[1])


async def test_answers_are_read_whole_and_told_apart() -> None:
    both = (
        b"HTTP/1.1 100 \r\n\r\nHTTP/1.1 400 \r\nX-Request-Id: a\r\nContent-Length: 2\r\n\r\nno"
        b"HTTP/1.1 200 \r\nx-request-id: b\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nyes\r\n0\r\n\r\n"
    )
    findings = Findings()
    async with server(both) as target:
        assert await ask(target, b"x", findings, last_id="b") == ["a", "b"]
        assert findings.done == {"answered 400": 1, "answered 200": 1}
        await ask(target, b"x", findings, last_id="c")
    assert findings.done["closed after the answer"] == 1


def test_header_sections_of_http2_are_written_as_others_read_them() -> None:
    fields = ((b":path", b"/x"), (b"a", b"y" * 300), (b"b", b""))
    assert tuple(Decoder().decode(section(*fields), raw=True)) == fields
    # The examples of RFC 7541, section C.1.
    assert (integer(10, 5), integer(1337, 5), integer(42, 8)) == (b"\n", b"\x1f\x9a\n", b"*")
    again = field(b"x", b"y", indexed=True) + b"\xbe"
    assert list(Decoder().decode(again, raw=True)) == [(b"x", b"y")] * 2


async def test_a_crowd_sends_each_number_once_until_the_time_is_over() -> None:
    sent: list[int] = []

    async def send(number: int) -> None:
        sent.append(number)
        await asyncio.sleep(0.001)

    await crowd(0.05, send)
    assert sorted(sent) == list(range(len(sent)))
    assert list(turns(0.0)) == []
