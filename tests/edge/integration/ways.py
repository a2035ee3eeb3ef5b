"""Two relays between a client and its edge, one for each way, that a test can block."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from outrider.client import Client, connect
from outrider.testing import eventually
from tests.edge.integration.nat import Nat
from tests.edge.integration.running import Running


class TcpRelay:
    """Clients connect to `port`."""

    def __init__(self, edge_port: int) -> None:
        self._edge_port = edge_port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.num_accepted = 0
        self.is_cut = False
        """What comes is dropped, and nobody is told."""

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End all connections."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            edge_reader, edge_writer = await asyncio.open_connection("127.0.0.1", self._edge_port)
            self._writers.add(edge_writer)
            await asyncio.gather(self._pass(reader, edge_writer), self._pass(edge_reader, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.is_cut:
                    await asyncio.Event().wait()  # TCP loses no bytes and keeps those behind them
                writer.write(data)
                await writer.drain()
            writer.write_eof()


@dataclass(frozen=True)
class Ways:
    """Both."""

    mesh: Running
    udp: Nat
    tcp: TcpRelay

    @asynccontextmanager
    async def client(self, **options: object) -> AsyncIterator[Client]:
        """One that may take either; `options` are those of `outrider.client.connect`."""
        where = f"quic://127.0.0.1:{self.udp.port}?tcp={self.tcp.port}"
        async with connect(where, ca=self.mesh.ca, **options) as client:  # type: ignore[arg-type]
            yield client


@asynccontextmanager
async def ways(mesh: Running) -> AsyncIterator[Ways]:
    """Both let everything through at first, and again at the end, until the edge has heard every
    client's farewell."""
    udp, tcp = Nat(mesh.ports.main), TcpRelay(mesh.ports.http)
    await udp.start()
    await tcp.start()
    try:
        yield Ways(mesh, udp, tcp)
        await tcp.close()
        await eventually(lambda: mesh.edge.telemetry.num_connections == 0)
    finally:
        udp.close()
        await tcp.close()
