"""Bytes over a distance: whole, in order, late, and no more of them held than may be."""

from __future__ import annotations

import asyncio
import socket

from outrider.cli.local import link
from outrider.cli.local.link import DelayedLink

HOST = "127.0.0.1"


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
    writer.close()


async def test_bytes_arrive_whole_and_a_round_trip_later() -> None:
    server = await asyncio.start_server(_echo, HOST, 0)
    far = DelayedLink(HOST, server.sockets[0].getsockname()[1], 0.02)
    port = await far.start()
    sent = bytes(range(256)) * 4096
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection(HOST, port)
    began = loop.time()
    writer.write(sent)
    writer.write_eof()
    first = await reader.readexactly(1)
    assert loop.time() - began >= 0.04
    assert first + await reader.read() == sent
    writer.close()
    await far.stop()
    server.close()


async def test_who_sends_and_is_not_read_waits() -> None:
    """What is under way is bounded: a sender gets stuck instead of filling the memory."""
    taken: list[asyncio.StreamWriter] = []

    async def never_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        writer.transport.pause_reading()  # type: ignore[attr-defined]

    server = await asyncio.start_server(never_read, HOST, 0)
    far = DelayedLink(HOST, server.sockets[0].getsockname()[1], 60.0)
    _, writer = await asyncio.open_connection(HOST, await far.start())
    most = 4 * link._MAX_UNDER_WAY * link._READ_BYTES  # sockets hold some, too
    sent = 0
    try:
        while sent <= most:
            writer.write(bytes(link._READ_BYTES))
            sent += link._READ_BYTES
            await asyncio.wait_for(writer.drain(), 2.0)
        stuck = False
    except TimeoutError:
        stuck = True
    assert stuck
    for it in (writer, *taken):
        it.transport.abort()
    await far.stop()
    server.close()


async def test_a_server_that_is_not_there_ends_the_connection() -> None:
    with socket.socket() as nobody:
        nobody.bind((HOST, 0))
        far = DelayedLink(HOST, nobody.getsockname()[1], 0.0)
        reader, writer = await asyncio.open_connection(HOST, await far.start())
        assert await reader.read() == b""
        writer.close()
        await far.stop()
