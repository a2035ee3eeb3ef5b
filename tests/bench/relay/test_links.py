"""The relay on real sockets: delays, order, counts, ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from bench.relay.control import relay
from bench.relay.lane import Conditions
from bench.relay.tcp import TcpLink
from bench.relay.udp import UdpLink
from outrider.testing import eventually, leak_check

SLOW = Conditions(delay_ms=30)


class Datagrams(asyncio.DatagramProtocol):
    """Keeps what comes; a server sends it back."""

    def __init__(self, *, echoes: bool = False) -> None:
        self.got: asyncio.Queue[bytes] = asyncio.Queue()
        self.transport: Any = None
        self._echoes = echoes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self.got.put_nowait(data)
        if self._echoes:
            self.transport.sendto(data, addr)


@contextlib.asynccontextmanager
async def udp_server() -> AsyncIterator[tuple[Datagrams, int]]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(
        lambda: Datagrams(echoes=True), local_addr=("127.0.0.1", 0)
    )
    yield server, transport.get_extra_info("sockname")[1]
    transport.close()


@contextlib.asynccontextmanager
async def udp_client(port: int) -> AsyncIterator[Datagrams]:
    loop = asyncio.get_running_loop()
    transport, client = await loop.create_datagram_endpoint(
        Datagrams, remote_addr=("127.0.0.1", port)
    )
    yield client
    transport.close()


@contextlib.asynccontextmanager
async def tcp_server() -> AsyncIterator[int]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def test_datagrams_take_the_delay_both_ways_and_reach_their_own_client() -> None:
    async with leak_check(), udp_server() as (_, port):
        link = UdpLink(("127.0.0.1", port))
        front = await link.start()
        link.set(SLOW, SLOW)
        async with udp_client(front) as one, udp_client(front) as other:
            began = time.perf_counter()
            one.transport.sendto(b"one")
            other.transport.sendto(b"another")
            answers = [await asyncio.wait_for(c.got.get(), 30) for c in (one, other)]
            assert time.perf_counter() - began >= 0.06
            assert answers == [b"one", b"another"]
        up, down = link.take_traffic()
        assert (up.packets, up.num_bytes) == (down.packets, down.num_bytes) == (2, 10)
        await link.stop()


async def test_a_byte_stream_arrives_whole_and_late() -> None:
    data = bytes(range(256)) * 4096
    async with leak_check(), tcp_server() as port:
        link = TcpLink(("127.0.0.1", port))
        front = await link.start()
        link.set(Conditions(delay_ms=20), SLOW)
        reader, writer = await asyncio.open_connection("127.0.0.1", front)
        began = time.perf_counter()
        writer.write(data)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(-1), 20) == data
        assert time.perf_counter() - began >= 0.05
        writer.close()
        up, down = link.take_traffic()
        assert up.num_bytes == down.num_bytes == len(data)
        await link.stop()


async def test_a_byte_stream_over_a_lossy_link_arrives_whole_and_in_order() -> None:
    data = bytes(range(256)) * 512
    async with leak_check(), tcp_server() as port:
        link = TcpLink(("127.0.0.1", port))
        front = await link.start()
        link.set(Conditions(jitter_ms=5, loss=0.02), Conditions(jitter_ms=5, loss=0.02))
        reader, writer = await asyncio.open_connection("127.0.0.1", front)
        writer.write(data)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(-1), 60) == data
        writer.close()
        up, down = link.take_traffic()
        assert up.lost + down.lost > 0
        await link.stop()


async def test_a_lossy_link_loses_datagrams_and_says_so() -> None:
    async with udp_server() as (server, port):
        link = UdpLink(("127.0.0.1", port))
        front = await link.start()
        async with udp_client(front) as client:
            client.transport.sendto(b"open")
            assert await asyncio.wait_for(client.got.get(), 30) == b"open"
            link.set(Conditions(loss=0.5), Conditions())
            for _ in range(100):
                client.transport.sendto(b"x")
            lost = 0

            def all_seen() -> bool:
                nonlocal lost
                lost += link.take_traffic()[0].lost
                return lost + server.got.qsize() == 101

            await eventually(all_seen)
            assert 25 <= lost <= 75
        await link.stop()


async def test_conditions_change_under_a_connection() -> None:
    async with tcp_server() as port:
        link = TcpLink(("127.0.0.1", port))
        reader, writer = await asyncio.open_connection("127.0.0.1", await link.start())
        for conditions in (Conditions(), SLOW):
            link.set(conditions, conditions)
            began = time.perf_counter()
            writer.write(b"ping")
            assert await asyncio.wait_for(reader.readexactly(4), 30) == b"ping"
            assert time.perf_counter() - began >= conditions.delay_ms * 2 / 1000
        writer.close()
        await link.stop()


async def test_a_client_hears_of_a_server_that_is_gone() -> None:
    async with tcp_server() as port:
        pass
    link = TcpLink(("127.0.0.1", port))
    reader, writer = await asyncio.open_connection("127.0.0.1", await link.start())
    assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()
    await link.stop()


async def test_the_relays_process_does_what_it_is_told() -> None:
    async with udp_server() as (_, udp), tcp_server() as tcp, relay() as control:
        front = await control.add("a", "udp", ("127.0.0.1", udp))
        stream = await control.add("b", "tcp", ("127.0.0.1", tcp))
        await control.set("a", SLOW)
        async with udp_client(front) as client:
            client.transport.sendto(b"hello")
            assert await asyncio.wait_for(client.got.get(), 30) == b"hello"
        reader, writer = await asyncio.open_connection("127.0.0.1", stream)
        writer.write(b"over tcp")
        assert await asyncio.wait_for(reader.readexactly(8), 30) == b"over tcp"
        writer.close()
        traffic = await control.take_traffic()
        assert [way.num_bytes for way in traffic.links["a"]] == [5, 5]
        assert [way.num_bytes for way in traffic.links["b"]] == [8, 8]
        assert traffic.cpu_s > 0
        assert (await control.take_traffic()).links["a"][0].packets == 0
