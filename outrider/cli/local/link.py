"""Simulates a distance on one machine: TCP connections whose bytes arrive some time later."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Final

_READ_BYTES: Final = 1 << 16
_MAX_UNDER_WAY: Final = 256
"""Reads under way in one direction; beyond that the sender waits, as with a full window."""


class DelayedLink:
    """Listens on a free port; what comes there reaches the target `delay_s` later, and answers come
    back as late."""

    def __init__(self, host: str, target_port: int, delay_s: float) -> None:
        self._host = host
        self._target_port = target_port
        self._delay_s = delay_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, bound: socket.socket | None = None) -> int:
        """The port to connect to. `bound`: a socket that is bound to it; None: any free one."""
        if bound is None:
            self._server = await asyncio.start_server(self._accept, self._host, 0)
        else:
            self._server = await asyncio.start_server(self._accept, sock=bound)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Cut every connection."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._target_port)
        except OSError:
            writer.close()
            return
        try:
            await self._both_ways(reader, writer, far_reader, far_writer)
        except asyncio.CancelledError:
            # What is still to be sent would keep them open for as long as nobody reads.
            far_writer.transport.abort()
            writer.transport.abort()
            raise
        finally:
            far_writer.close()
            writer.close()

    async def _both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(reader, far_writer))
                both.create_task(self._carry(far_reader, writer))
        except* OSError:
            pass  # one side is gone; the other hears of it when both are closed

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MAX_UNDER_WAY)

        async def deliver() -> None:
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(due - loop.time())
                if not data:
                    with contextlib.suppress(OSError):
                        writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(deliver())
            data = b"-"
            while data:
                data = await reader.read(_READ_BYTES)
                await under_way.put((loop.time() + self._delay_s, data))
