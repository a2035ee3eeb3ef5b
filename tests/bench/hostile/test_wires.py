"""What attacks send over HTTP, and how they read the answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from hpack import Decoder

from bench.hostile.http1 import ask
from bench.hostile.http2 import section
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
    last = b"HTTP/1.1 100 \r\n\r\nHTTP/1.1 400 \r\nContent-Length: 2\r\n\r\nno"
    findings = Findings()
    for data in (last, b"HTTP/1.1 200 \r\nContent-Length: 9\r\n\r\nno"):
        async with server(data) as target:
            await ask(target, b"x", findings, 5.0)
    assert findings.done == {"answered 400": 1, "closed without an answer": 1}


def test_header_sections_of_http2_are_read_as_they_are_meant() -> None:
    fields = dict(Decoder().decode(section("POST", "/x", authorization="y" * 300), raw=True))
    assert fields[b":method"] == b"POST" and fields[b":path"] == b"/x"
    assert fields[b"authorization"] == b"y" * 300


async def test_a_crowd_sends_each_number_once_until_the_time_is_over() -> None:
    sent: list[int] = []

    async def send(number: int) -> None:
        sent.append(number)
        await asyncio.sleep(0.001)

    await crowd(0.05, send)
    assert sorted(sent) == list(range(len(sent)))
    assert list(turns(0.0)) == []
