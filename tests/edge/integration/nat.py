"""A relay between a client and its edge that does what networks do: forget, drop, change ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from outrider.testing import eventually
from tests.edge.integration.running import Running

Address = tuple[Any, ...]


class _Port(asyncio.DatagramProtocol):
    def __init__(self, received: Callable[[bytes, Address], None]) -> None:
        self.datagram_received = received  # type: ignore[method-assign, assignment]

    def error_received(self, exc: Exception) -> None:
        """The other side has no socket there at the moment: datagrams get lost."""


class Nat:
    """Clients send to `port`; the edge sees `outside`, another one after `rebind`."""

    def __init__(self, edge_port: int) -> None:
        self._edge = ("127.0.0.1", edge_port)
        self._inside: asyncio.DatagramTransport | None = None
        self._outside: asyncio.DatagramTransport | None = None
        self._client: Address | None = None
        self._held: list[bytes] = []
        self.port = 0
        self.deaf_to: set[Address] = set()
        """Clients from which nothing gets through, nor to them."""
        self.is_cut = False
        """Nothing gets through at all."""
        self.holds_answers_of_client = False
        """What the client sends once it has heard of the edge is kept, until `release`."""
        self.sent: list[bytes] = []
        """What the client sent and what got through."""
        self._has_answered = False

    @property
    def clients(self) -> Address | None:
        """The address that the client sent from last."""
        return self._client

    async def start(self) -> None:
        """Open both sides."""
        self._inside = await self._open(self._from_client, ("127.0.0.1", 0))
        self.port = self._inside.get_extra_info("sockname")[1]
        await self.rebind()

    async def rebind(self) -> None:
        """The binding was forgotten: what the edge sends to the old port is lost, what the client
        sends comes from a new one."""
        old, self._outside = self._outside, await self._open(self._from_edge, ("127.0.0.1", 0))
        if old is not None:
            old.close()

    def release(self) -> None:
        """Let through what was held."""
        self.holds_answers_of_client = False
        held, self._held = self._held, []
        for data in held:
            self._forward(data)

    def close(self) -> None:
        """Close both sides."""
        for transport in (self._inside, self._outside):
            if transport is not None:
                transport.close()

    async def _open(
        self, received: Callable[[bytes, Address], None], local: Address
    ) -> asyncio.DatagramTransport:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Port(received), local_addr=(local[0], local[1])
        )
        return transport

    def _from_client(self, data: bytes, addr: Address) -> None:
        if self.is_cut or addr in self.deaf_to:
            return
        self._client = addr
        if self.holds_answers_of_client and self._has_answered:
            self._held.append(data)
        else:
            self._forward(data)

    def _forward(self, data: bytes) -> None:
        assert self._outside is not None
        self.sent.append(data)
        self._outside.sendto(data, self._edge)

    def _from_edge(self, data: bytes, addr: Address) -> None:
        if self.is_cut or self._client is None or self._client in self.deaf_to:
            return
        assert self._inside is not None
        self._has_answered = True
        self._inside.sendto(data, self._client)


@asynccontextmanager
async def nat(mesh: Running) -> AsyncIterator[Nat]:
    """A relay to the edge; it stays until every client's farewell has got through."""
    relay = Nat(mesh.ports.main)
    await relay.start()
    try:
        yield relay
        await eventually(lambda: mesh.edge.telemetry.num_connections == 0)
    finally:
        relay.close()
