"""A way to a server that forgets connections, as a firewall does that was started anew."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any


class ForgetfulRelay:
    """Carries bytes between clients and a server, both on the loopback, in a thread of its own."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        """Where clients connect."""
        self.is_cut = False
        """Connections that come now are accepted, and nothing of them is carried."""
        self.delay_s = 0.0
        """How long the server's answers take on their way, over connections that come now."""
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._carriers: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    def forget(self) -> None:
        """Carry nothing any more for those that are connected, and tell nobody."""
        self._there(self._forget())

    def reset(self) -> None:
        """Reset all connections."""
        self._there(self._reset())

    @contextmanager
    def running(self) -> Iterator[ForgetfulRelay]:
        """Both ends of all connections are closed with the context."""
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        try:
            server = self._there(asyncio.start_server(self._accept, "127.0.0.1", 0))
            self.port = server.sockets[0].getsockname()[1]
            try:
                yield self
            finally:
                self._there(self._close(server))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    def _there(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _close(self, server: asyncio.Server) -> None:
        server.close()
        await self._reset()
        await server.wait_closed()

    async def _reset(self) -> None:
        await self._forget()
        for writer in self._writers:
            at_once = struct.pack("ii", 1, 0)
            with suppress(OSError):  # it is closed
                end = writer.get_extra_info("socket")
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            writer.transport.abort()
        self._writers.clear()

    async def _forget(self) -> None:
        carriers = [*self._carriers]
        for carrier in carriers:
            carrier.cancel()
        await asyncio.gather(*carriers, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self.is_cut:
            return
        answers, onward = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers.append(onward)
        for source, sink, delay_s in ((reader, onward, 0.0), (answers, writer, self.delay_s)):
            carrier = asyncio.create_task(_carry(source, sink, delay_s))
            self._carriers.add(carrier)
            carrier.add_done_callback(self._carriers.discard)


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay_s: float) -> None:
    with suppress(ConnectionError):
        while data := await source.read(1 << 16):
            await asyncio.sleep(delay_s)
            sink.write(data)
            await sink.drain()
        sink.close()


@contextmanager
def forgetful_relay(target_port: int) -> Iterator[ForgetfulRelay]:
    """One that runs, ended with the context."""
    with ForgetfulRelay(target_port).running() as relay:
        yield relay
