"""A relay between a client and a mirror that cuts connections in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class CuttingRelay:
    """Passes everything on until a cut is due."""

    port: int = 0
    cuts: list[int] = field(default_factory=list)
    """After how many bytes towards the client each connection breaks, in the order of their
    answers; the rest are left alone."""
    num_cut: int = 0
    is_dead: bool = False
    """From now on nobody gets through, and nobody is told anything."""


@asynccontextmanager
async def cutting_relay(target_port: int) -> AsyncIterator[CuttingRelay]:
    """A relay that runs, ended with the context."""
    relay = CuttingRelay()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if relay.is_dead:
            writer.transport.abort()
            return
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", target_port)
        asking = asyncio.create_task(_carry(reader, upstream))
        left = relay.cuts.pop(0) if relay.cuts else None
        try:
            while data := await upstream_reader.read(4096):
                if relay.is_dead or (left is not None and len(data) >= left):
                    relay.num_cut += 1
                    if not relay.is_dead:
                        writer.write(data[:left])
                        await writer.drain()
                    break
                left = None if left is None else left - len(data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            asking.cancel()
            writer.close()
            upstream.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        await server.wait_closed()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the client is gone; then nothing more is wanted of the mirror either."""
    with suppress(ConnectionError):
        while data := await reader.read(4096):
            writer.write(data)
            await writer.drain()
    writer.close()
