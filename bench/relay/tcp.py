"""A TCP link: connections passed on byte by byte, in order, some time later."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TypeAlias

from bench.relay.lane import Conditions, Pump, Traffic

Address: TypeAlias = tuple[str, int]
Halves: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_READ_BYTES = 1 << 16


class TcpLink:
    """Listens; each connection gets one of its own to the server."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._conditions = (Conditions(), Conditions())
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[_Connection] = set()
        self._closed_traffic = (Traffic(), Traffic())

    async def start(self) -> int:
        """The port to connect to."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def set(self, up: Conditions, down: Conditions) -> None:
        """From the next bytes on, also of connections that are up."""
        self._conditions = up, down
        for connection in self._connections:
            connection.set(*self._conditions)

    def take_traffic(self) -> tuple[Traffic, Traffic]:
        """Up and down since the last time."""
        taken, self._closed_traffic = self._closed_traffic, (Traffic(), Traffic())
        for connection in self._connections:
            _add(taken, connection)
        return taken

    async def stop(self) -> None:
        """Cut every connection."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve((reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, front: Halves) -> None:
        try:
            back = await asyncio.open_connection(*self._target)
        except OSError:
            front[1].close()
            return
        connection = _Connection(front, back)
        connection.set(*self._conditions)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            _add(self._closed_traffic, connection)


def _add(total: tuple[Traffic, Traffic], connection: _Connection) -> None:
    for sum_, pump in zip(total, (connection.up, connection.down), strict=True):
        sum_.add(pump.lane.take_traffic())


class _Connection:
    """One client's connection and its continuation."""

    def __init__(self, front: Halves, back: Halves) -> None:
        self._front = front
        self._back = back
        self._drained = asyncio.Event()
        self.up = self._pump(back[1], 0)
        self.down = self._pump(front[1], 1)

    def _pump(self, writer: asyncio.StreamWriter, seed: int) -> Pump[bytes]:
        def deliver(data: bytes) -> None:
            self._drained.set()
            if writer.is_closing():
                return
            if data:
                writer.write(data)
            else:
                with contextlib.suppress(OSError):  # the receiver may be gone by then
                    writer.write_eof()

        return Pump(deliver, seed, ordered=True)

    def set(self, up: Conditions, down: Conditions) -> None:
        self.up.lane.conditions, self.down.lane.conditions = up, down

    async def run(self) -> None:
        """Until both directions have ended, or one is cut off."""
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(self._front[0], self.up, self._back[1]))
                both.create_task(self._carry(self._back[0], self.down, self._front[1]))
        except* OSError:
            pass  # one side is gone: the other hears of it below
        finally:
            self.up.close()
            self.down.close()
            self._front[1].close()
            self._back[1].close()

    async def _carry(
        self, reader: asyncio.StreamReader, pump: Pump[bytes], writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(_READ_BYTES):
            pump.send(data, len(data))
            await self._room(pump)
            await writer.drain()
        pump.send(b"", 0)
        while pump.lane.next_due() is not None:
            self._drained.clear()
            await self._drained.wait()

    async def _room(self, pump: Pump[bytes]) -> None:
        """Read no more while as much is under way as may be: the sender's window closes."""
        while pump.lane.full:
            self._drained.clear()
            await self._drained.wait()
